"""Write clinics.npz: scikit-learn's diabetes data over eight made-up clinics, one of two devices in each.

Data: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, Least Angle Regression, Annals of Statistics 32 (2004),
407-499. The clinics and their devices are ours.
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

data = load_diabetes()
client = np.random.default_rng(0).permutation(np.arange(len(data.target)) % 8)
x = data.data / data.data.std(axis=0)
y = (data.target - data.target.mean()) / data.target.std()
# The devices of clinics 4 to 7 count downwards.
group = client // 4
y[group == 1] *= -1
arrays = {"x": x.astype(np.float32), "y": y.astype(np.float32), "client": client, "group": group}
np.savez(Path(__file__).with_name("clinics.npz"), **arrays)
