import io
import re
import string
import tensorflow as tf
import numpy as np
from tensorflow.keras import layers
from tensorflow.keras.preprocessing.sequence import skipgrams

SEED = 42
BATCH_SIZE = 8192
VOCAB = 800
DIM = 256
tf.keras.utils.set_random_seed(SEED)

zipf = np.random.zipf(1.3, size=(60, 30)) % VOCAB
sequences = [list(map(int, row)) for row in zipf]
targets, contexts, labels = [], [], []
for s in sequences:
    couples, lab = skipgrams(s, VOCAB, window_size=4, negative_samples=2.0, seed=SEED)
    for (a, b), l in zip(couples, lab):
        targets.append(a); contexts.append(b); labels.append(l)
targets, contexts, labels = map(np.asarray, (targets, contexts, labels))
print(f"targets.shape: {targets.shape}  labels: {labels.mean():.3f}")


class Word2Vec(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim):
        super(Word2Vec, self).__init__()
        self.target_embedding = layers.Embedding(vocab_size, embedding_dim, name="w2v_embedding")
        self.context_embedding = layers.Embedding(vocab_size, embedding_dim)
        self.proj = layers.Dense(embedding_dim, activation="tanh")
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, pair):
        target, context = pair
        word_emb = self.proj(self.target_embedding(target))
        context_emb = self.proj(self.context_embedding(context))
        return self.scale * tf.einsum("be,be->b", word_emb, context_emb)


def custom_loss(y_true, x_logit):
    return tf.nn.sigmoid_cross_entropy_with_logits(logits=x_logit, labels=tf.cast(y_true, tf.float32))


dataset = tf.data.Dataset.from_tensor_slices(((targets, contexts), labels))
dataset = dataset.batch(BATCH_SIZE, drop_remainder=True).take(3).cache().prefetch(tf.data.AUTOTUNE)

word2vec = Word2Vec(VOCAB, DIM)
word2vec.compile(optimizer="adam", loss=custom_loss, metrics=["accuracy"])
hist = word2vec.fit(dataset, epochs=2)

weights = word2vec.get_layer("w2v_embedding").get_weights()[0]
out_v = io.open("vectors.tsv", "w", encoding="utf-8")
for row in weights[1:20]:
    out_v.write("\t".join(str(x) for x in row) + "\n")
out_v.close()
print("vectors norm %.4f, loss %.5f" % (np.linalg.norm(weights), hist.history["loss"][-1]))
