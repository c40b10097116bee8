import itertools
import json
import gc

import numpy as np
from keras import Sequential, Input
from keras import backend as K
from keras.layers import Dense, Conv1D, GlobalMaxPooling1D
from keras.optimizers import Adam
from keras.utils import set_random_seed
import keras

X = np.random.RandomState(42).randn(864, 256, 8).astype("float32")
Y = (X[:, :128, 0].mean(axis=1) > 0).astype("float32")

PARAMS = {
    "filters": [32, 64],
    "lr": [1e-3],
}
K_FOLDS = 3
BATCH = 288


def build(filters, lr):
    model = Sequential()
    model.add(Input(shape=X.shape[1:]))
    model.add(Conv1D(filters, 3, padding="same", activation="relu"))
    model.add(Conv1D(filters, 3, padding="same", activation="relu"))
    model.add(Conv1D(filters, 3, padding="same", activation="relu"))
    model.add(GlobalMaxPooling1D())
    model.add(Dense(1, activation="sigmoid"))
    model.compile(loss="binary_crossentropy", optimizer=Adam(learning_rate=lr), metrics=["accuracy"])
    return model


def folds(n, k):
    idx = np.random.RandomState(0).permutation(n)
    for part in np.array_split(idx, k):
        yield np.setdiff1d(idx, part), part


results = []
for values in itertools.product(*PARAMS.values()):
    params = dict(zip(PARAMS, values))
    scores = []
    for fold, (train, test) in enumerate(folds(len(X), K_FOLDS)):
        keras.backend.clear_session()
        set_random_seed(fold)
        model = build(**params)
        model.fit(X[train], Y[train], epochs=1, batch_size=BATCH, verbose=0)
        scores.append(model.evaluate(X[test], Y[test], batch_size=BATCH, verbose=0)[0])
        del model
        gc.collect()
    results.append(dict(params, loss=float(np.mean(scores))))
    print(json.dumps(results[-1]))

best = min(results, key=lambda r: r["loss"])
print("BEST:", best)
