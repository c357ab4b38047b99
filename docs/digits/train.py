"""Train and export the digits classifier that ships with onnxad.

    pip install scikit-learn torch onnxscript
    python docs/digits/train.py

Reads the 8-by-8 handwritten digits of scikit-learn (1,797 images, from the UCI repository), trains a small
convolutional network with PyTorch for a minute and writes beside this script:

    digits.onnx   images [batch, 1, 8, 8] and labels [batch] to logits [batch, 10] and the mean cross-entropy loss
    digits.npz    64 images and labels that were not trained on
"""

import pathlib

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from torch import nn

HERE = pathlib.Path(__file__).parent


class Digits(nn.Module):
    """Two convolutions, a hidden layer, ten classes; returns logits and loss."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.GELU()
        )
        self.head = nn.Sequential(nn.Linear(24 * 16, 48), nn.Tanh(), nn.Linear(48, 10))

    def forward(self, images, labels):
        logits = self.head(self.features(images).flatten(1))
        return logits, nn.functional.cross_entropy(logits, labels)


def main():
    torch.manual_seed(0)
    data = load_digits()
    images = torch.tensor(data.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels))
    train, test = order[:1500], order[1500:]
    net = Digits()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(30):
        for batch in train[torch.randperm(len(train))].split(50):
            optimizer.zero_grad()
            net(images[batch], labels[batch])[1].backward()
            optimizer.step()
    net.eval()
    right = (net(images[test], labels[test])[0].argmax(1) == labels[test]).float().mean()
    print(f"accuracy on {len(test)} images that were not trained on: {right:.3f}")
    program = torch.onnx.export(
        net,
        (images[test][:4], labels[test][:4]),
        dynamo=True,
        opset_version=18,
        input_names=["images", "labels"],
        output_names=["logits", "loss"],
        dynamic_shapes={"images": {0: "batch"}, "labels": {0: "batch"}},
    )
    model = program.model_proto
    for item in (*model.graph.node, *model.graph.value_info, *model.graph.input, *model.graph.output, model.graph):
        del item.metadata_props[:]  # the exporter's stack traces
    onnx.save(model, HERE / "digits.onnx")
    np.savez_compressed(HERE / "digits.npz", images=images[test][:64], labels=labels[test][:64])


if __name__ == "__main__":
    main()
