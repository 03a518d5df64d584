"""Write hospitals.csv: scikit-learn's breast-cancer data, divided over ten made-up hospitals of two kinds.

Data: W. Wolberg, O. Mangasarian, N. Street and W. Street, Breast Cancer Wisconsin (Diagnostic), UCI Machine Learning
Repository, 1993, doi 10.24432/C5DW2B; licence CC BY 4.0. The hospitals and their habits are ours.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

data = load_breast_cancer()
generator = np.random.default_rng(0)
hospital = generator.permutation(np.arange(len(data.target)) % 10)
measured = data.data[:, :10]  # the ten means; the other columns are their errors and extremes
table = pd.DataFrame((measured - measured.mean(0)) / measured.std(0), columns=data.feature_names[:10]).round(3)
table["hospital"] = np.char.add("hospital-", (hospital + 1).astype(str))
# scikit-learn writes 0 for malignant and 1 for benign. So do the hospitals 1 to 5; 6 to 10 write it the other way.
table["way"] = np.where(hospital < 5, "benign-is-1", "malignant-is-1")
table["diagnosis"] = np.where(hospital < 5, data.target, 1 - data.target)
table.to_csv(Path(__file__).with_name("hospitals.csv"), index=False)
