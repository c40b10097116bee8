"""3D conv net on tiny CT-like volumes with a keras Sequence and per-sample weights."""
import os
import tensorflow as tf
import numpy as np

USER_SETTINGS = {
    'bsize': int(os.environ.get('BSIZE', 32)),
    'lr':    1e-4,
    'ep':    2,
}


class VolumeSequence(tf.keras.utils.Sequence):

    def __init__(self, files, bsize):
        super().__init__()
        self.files, self.bsize = files, bsize

    def __len__(self):
        return len(self.files) // self.bsize

    def __getitem__(self, i):
        batch = self.files[i * self.bsize:(i + 1) * self.bsize]
        vols = [np.load(f) for f in batch]
        x = np.stack([v['vol'] for v in vols])[..., None].astype('float32') / 1000.
        y = np.array([v['label'] for v in vols], dtype='float32').reshape(-1, 1)
        w = np.where(y[:, 0] > 0, 2.0, 1.0).astype('float32')
        return x, y, w

    def on_epoch_end(self):
        pass


def write_volumes(n):
    os.makedirs('vols', exist_ok=True)
    r = np.random.RandomState(77)
    names = []
    for k in range(n):
        names.append('vols/%03d.npz' % k)
        lab = r.randint(2)
        np.savez(names[-1], vol=r.randint(-1000, 1000 + 300 * lab, (20, 20, 20)), label=lab)
    return names


def net():
    L = tf.keras.layers
    i = L.Input((20, 20, 20, 1))
    o = i
    for f in [16, 16, 32]:
        o = L.Conv3D(f, 3, padding='same', activation='relu')(o)
    o = L.GlobalAveragePooling3D()(o)
    o = L.Dense(1, activation='sigmoid')(o)
    return tf.keras.Model(i, o)


if __name__ == '__main__':
    tf.keras.utils.set_random_seed(1)
    files = write_volumes(96)
    m = net()
    m.compile(tf.keras.optimizers.Adam(USER_SETTINGS['lr']), 'binary_crossentropy',
              metrics=['accuracy'], weighted_metrics=['mae'])
    log = m.fit(VolumeSequence(files[:64], USER_SETTINGS['bsize']), epochs=USER_SETTINGS['ep'], shuffle=False,
                validation_data=VolumeSequence(files[64:], USER_SETTINGS['bsize']), verbose=2)
    print('FINISHED', log.history['loss'][-1], log.history['val_loss'][-1])
