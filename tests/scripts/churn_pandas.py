# coding: utf-8
# Exported from churn.ipynb
# In[1]:
import pandas as pd
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
get_ipython = None

# In[2]:
np.random.seed(0)
n = 8192
df = pd.DataFrame({f"num_{i}": np.random.randn(n) for i in range(20)})
df["plan"] = np.random.choice(["basic", "pro", "enterprise"], n)
df["region"] = np.random.choice(list("ABCDEFGH"), n)
df["churn"] = ((df.num_0 + df.num_1 * df.num_2 + (df.plan == "basic") + 0.3 * np.random.randn(n)) > 1).astype(int)
df.head()

# In[3]:
df = pd.get_dummies(df, columns=["plan", "region"], dtype=float)
train = df.sample(frac=0.75, random_state=1)
test = df.drop(train.index)
y_train, y_test = train.pop("churn"), test.pop("churn")
neg, pos = np.bincount(y_train)
print(f"{pos} of {neg + pos} customers churn")
weights = {0: (neg + pos) / (2.0 * neg), 1: (neg + pos) / (2.0 * pos)}

# In[4]:
keras.utils.set_random_seed(0)
normalizer = layers.Normalization(axis=-1)
normalizer.adapt(np.array(train))
model = keras.Sequential([
    normalizer,
    layers.Dense(512, activation="relu"),
    layers.Dense(512, activation="selu", kernel_regularizer=keras.regularizers.l2(1e-4)),
    layers.Dense(512, activation="gelu"),
    layers.Dense(512, activation="gelu"),
    layers.Dense(1, activation="sigmoid"),
])
model.compile(loss="binary_crossentropy", optimizer=keras.optimizers.Adam(0.001),
              metrics=["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Precision(), keras.metrics.Recall()])

# In[5]:
history = model.fit(train, y_train, epochs=3, batch_size=4096, validation_split=0.2, class_weight=weights,
                    shuffle=False, verbose=0)
hist = pd.DataFrame(history.history)
hist["epoch"] = history.epoch
print(hist.tail(2).T)

# In[6]:
results = model.evaluate(test, y_test, verbose=0, batch_size=4096, return_dict=True)
test["p"] = model.predict(test, batch_size=4096, verbose=0).ravel()
print("mean predicted churn:", test.p.mean(), "loss:", results["loss"], "auc:", results["auc"])
