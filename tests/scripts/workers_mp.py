"""Simulate in worker processes first, then train on what they computed."""
import multiprocessing as mp
import os
import time

import numpy as np

BATCH_SIZE = 512
N_WORKERS = 2


def simulate(seed):
    """One trajectory of a damped pendulum; runs in the pool, without TF."""
    rng = np.random.default_rng(seed)
    theta, omega = rng.uniform(-1, 1, 2)
    out = np.empty((256, 2), dtype=np.float32)
    for i in range(len(out)):
        omega += (-np.sin(theta) - 0.1 * omega) * 0.05
        theta += omega * 0.05
        out[i] = theta, omega
    return out


def train(trajs):
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x, y = trajs[:, :-1], trajs[:, 1:]
    model = keras.Sequential(
        [
            layers.Input(x.shape[1:]),
            layers.Dense(64, "tanh"),
            layers.Conv1D(64, 3, padding="causal", activation="tanh"),
            layers.Dense(2),
        ]
    )
    model.compile("adam", "mse")

    class Feed(keras.utils.PyDataset):
        def __len__(self):
            return int(np.ceil(len(x) / BATCH_SIZE))

        def __getitem__(self, i):
            s = slice(i * BATCH_SIZE, (i + 1) * BATCH_SIZE)
            return x[s], y[s]

    h = model.fit(Feed(workers=2, use_multiprocessing=False, max_queue_size=4), epochs=3, shuffle=False, verbose=0)
    return h.history["loss"]


if __name__ == "__main__":
    t = time.time()
    ctx = mp.get_context("spawn")
    with ctx.Pool(N_WORKERS) as pool:
        trajs = np.stack(pool.map(simulate, range(1024), chunksize=64))
    print(f"simulated {trajs.shape} with {N_WORKERS} workers, pid {os.getpid()}, in {time.time() - t:.1f}s")
    print("loss per epoch:", train(trajs))
