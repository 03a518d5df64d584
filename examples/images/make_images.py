"""Write labels.csv and images/: sixty of scikit-learn's handwritten digits, by six made-up offices.

Data: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
doi 10.24432/C50P49; licence CC BY 4.0. The offices and their scanners are ours.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from sklearn.datasets import load_digits

here = Path(__file__).parent
pixels, labels = load_digits(n_class=3, return_X_y=True)
pixels, labels = np.rint(pixels[:60] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8), labels[:60]
office = np.random.default_rng(0).permutation(np.arange(60) % 6)
(here / "images").mkdir(exist_ok=True)
rows = []
for number in range(60):
    # The scanners of the offices d, e and f give negatives.
    scanner = "positive" if office[number] < 3 else "negative"
    shown = pixels[number] if scanner == "positive" else 255 - pixels[number]
    Image.fromarray(shown).save(here / "images" / f"{number:02}.png")
    rows.append((f"{number:02}.png", labels[number], f"office-{'abcdef'[office[number]]}", scanner))
pd.DataFrame(rows, columns=["path", "label", "client", "scanner"]).to_csv(here / "labels.csv", index=False)
