import tensorflow as tf
import numpy as np
import argparse, sys

parser = argparse.ArgumentParser(description='attention classifier')
parser.add_argument('-b', '--batch_size', default=128, type=int)
parser.add_argument('-e', '--epochs', default=2, type=int)
parser.add_argument('--units', default=64, type=int)
parser.add_argument('--eager', action='store_true', help='debug')
FLAGS, unparsed = parser.parse_known_args()


class BahdanauAttention(tf.keras.layers.Layer):
    def __init__(self, units):
        super(BahdanauAttention, self).__init__()
        self.W1 = tf.keras.layers.Dense(units)
        self.W2 = tf.keras.layers.Dense(units)
        self.V = tf.keras.layers.Dense(1)

    def call(self, query, values):
        query_with_time_axis = tf.expand_dims(query, 1)
        score = self.V(tf.nn.tanh(self.W1(query_with_time_axis) + self.W2(values)))
        attention_weights = tf.nn.softmax(score, axis=1)
        context_vector = attention_weights * values
        context_vector = tf.reduce_sum(context_vector, axis=1)
        return context_vector, attention_weights


class Classifier(tf.keras.Model):
    def __init__(self, vocab, units, n_classes):
        super(Classifier, self).__init__()
        self.embedding = tf.keras.layers.Embedding(vocab, units)
        self.gru = tf.keras.layers.GRU(units, return_sequences=True, return_state=True)
        self.attention = BahdanauAttention(units)
        self.fc = tf.keras.layers.Dense(n_classes)

    def call(self, x, training=False):
        x = self.embedding(x)
        output, state = self.gru(x)
        context, _ = self.attention(state, output)
        return self.fc(context)


def main(_):
    tf.keras.utils.set_random_seed(2)
    rng = np.random.RandomState(2)
    seqs = rng.randint(0, 1000, (384, 64))
    labels = seqs[:, 0] % 7
    model = Classifier(1000, FLAGS.units, 7)
    model.compile(
        tf.keras.optimizers.Adam(),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=['accuracy'],
        run_eagerly=FLAGS.eager,
    )
    ds = tf.data.Dataset.from_tensor_slices((seqs, labels)).cache().batch(FLAGS.batch_size)
    model.fit(ds, epochs=FLAGS.epochs, verbose=2)
    model.save_weights('attention.weights.h5')
    fresh = Classifier(1000, FLAGS.units, 7)
    fresh(seqs[:1])
    fresh.load_weights('attention.weights.h5')
    fresh.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    print('restored loss', fresh.evaluate(ds, verbose=0))


if __name__ == '__main__':
    main([sys.argv[0]] + unparsed)
