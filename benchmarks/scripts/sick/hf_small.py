"""The Trainer of Transformers on a small model of ours."""

import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 3, (count,), generator=g)
        self.ids = torch.randint(0, 800, (count, 24), generator=g) + self.labels[:, None] * 100

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1100, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(64, 3)

    def forward(self, input_ids, labels=None):
        logits = self.out(self.encoder(self.embed(input_ids)).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main():
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=32,
        per_device_eval_batch_size=128,
        max_steps=80,
        logging_steps=50,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Sentences(3000, 1), eval_dataset=Sentences(768, 2))
    trainer.train()


if __name__ == "__main__":
    main()
