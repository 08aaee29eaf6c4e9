"""The sick scripts of benchmarks/scripts/sick: what was planted in each, the cure that proves it, and the words by which a
finding of the doctor counts as right. Written before the doctor's rules were read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).with_name("scripts") / "sick"


@dataclass(frozen=True)
class Sick:
    name: str
    sort: str  # "wrong" (the training learns or measures something else than meant) or "slow"
    cause: str
    words: str  # a finding is right when its kind, title or text matches this pattern (case does not matter)
    cure: tuple[tuple[str, str], ...]  # (text of the script, text in its place)

    @property
    def path(self) -> Path:
        return SCRIPTS / f"{self.name}.py"

    def cured(self) -> str:
        text = self.path.read_text()
        for old, new in self.cure:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: the text to be cured occurs {text.count(old)} times: {old!r}")
            text = text.replace(old, new)
        return text

    def planted_lines(self) -> list[int]:
        """The lines of the script that the cure changes."""
        text = self.path.read_text()
        lines: set[int] = set()
        for old, _ in self.cure:
            first = text[: text.index(old)].count("\n") + 1
            lines.update(range(first, first + old.rstrip("\n").count("\n") + 1))
        return sorted(lines)


def _wrong(name: str, cause: str, words: str, *cure: tuple[str, str]) -> Sick:
    return Sick(name, "wrong", cause, words, cure)


def _slow(name: str, cause: str, words: str, *cure: tuple[str, str]) -> Sick:
    return Sick(name, "slow", cause, words, cure)


_ALL = [
    # --- the training learns, or measures, something else than meant
    _wrong(
        "flowers_cnn",
        "The evaluation runs with dropout and batch norm in training mode: model.eval() is missing.",
        r"(eval|validat|no_grad)[^.]*(train(ing)? mode|without[^.]*\.eval)|training mode[^.]*(eval|validat|no_grad)",
        ("    correct = total = 0\n", "    correct = total = 0\n    model.eval()\n"),
    ),
    _wrong(
        "churn_tabular",
        "zero_grad is never called, so gradients of all steps add up.",
        r"zero_grad|gradients? (are |is )?(never|not) (cleared|zeroed|reset)|gradients?[^.]*(add up|accumulat)",
        ("    loss.backward()\n", "    opt.zero_grad()\n        loss.backward()\n"),
    ),
    _wrong(
        "wine_quality",
        "Most rows of the test set are also in the training set: the two were drawn independently.",
        r"(test|validation|evaluation|held)[^.]*(overlap|also[^.]*train|shared?|seen in training|trained on|same (rows|samples|examples))|leak",
        (
            "train_part = Subset(wines, torch.randperm(len(wines))[:3200].tolist())\n"
            "test_part = Subset(wines, torch.randperm(len(wines))[:800].tolist())\n",
            "order = torch.randperm(len(wines)).tolist()\n"
            "train_part = Subset(wines, order[:3200])\ntest_part = Subset(wines, order[3200:])\n",
        ),
    ),
    _wrong(
        "news_topics",
        "The model ends with a softmax and CrossEntropyLoss applies another.",
        r"softmax",
        ("return torch.softmax(scores, dim=-1)", "return scores"),
    ),
    _wrong(
        "birds_audio",
        "After the first validation the model stays in evaluation mode, so dropout is off for the rest of the training.",
        r"(eval(uation)? mode|\.eval\(\)|dropout)[^.]*(train|step|stay|off|inactive|never)|never[^.]*back to train|without[^.]*\.train\(",
        (
            "            for audio, label in self.train_data:\n",
            "            self.model.train()\n            for audio, label in self.train_data:\n",
        ),
    ),
    _wrong(
        "digits_decay",
        "A schedule meant for epochs is stepped after every batch, so the learning rate is soon nothing.",
        r"schedul|learning.rate[^.]*(zero|nothing|tiny|decay|vanish|fell|falls|small)",
        ("        optimizer.step()\n        scheduler.step()\n", "        optimizer.step()\n"),
        (
            "        train(model, optimizer, scheduler, data[:4000], target[:4000], epoch)\n",
            "        train(model, optimizer, scheduler, data[:4000], target[:4000], epoch)\n        scheduler.step()\n",
        ),
    ),
    _wrong(
        "leaf_species",
        "The training data is sorted by class and is not shuffled.",
        r"shuffl|sorted by|same order|in order|one class|single class",
        ("batch_size=48, shuffle=False", "batch_size=48, shuffle=True"),
    ),
    _wrong(
        "street_photos",
        "Every worker has a copy of the same random generator, so the workers draw the same augmentations.",
        r"(worker|process)[^.]*(same|identical|copy|copies)[^.]*(random|seed|augment|generator|draw)|(random|seed|generator|augment)[^.]*(same|identical)[^.]*worker",
        (
            "        return self.rng\n",
            "        if torch.utils.data.get_worker_info() is not None and self.rng is not getattr(self, 'own', None):\n"
            "            self.rng = self.own = np.random.default_rng(torch.utils.data.get_worker_info().seed)\n        return self.rng\n",
        ),
    ),
    _wrong(
        "house_prices",
        "Predictions of shape (N, 1) minus targets of shape (N,) broadcast to N x N.",
        r"broadcast|shape",
        ("            predicted = model(x[rows])\n", "            predicted = model(x[rows]).squeeze(1)\n"),
    ),
    _wrong(
        "char_lm",
        "The targets are the inputs themselves: they are not shifted by one, so the model learns to copy.",
        r"(target|label)[^.]*(input|shift|same|equal|identical|copy)|shift",
        (
            "    y = torch.stack([data[i : i + block] for i in starts])\n",
            "    y = torch.stack([data[i + 1 : i + 1 + block] for i in starts])\n",
        ),
    ),
    _wrong(
        "wave_probe",
        "detach() cuts the encoder off, so its parameters are in the optimizer and never get a gradient.",
        r"detach|(no|never|without|not)[^.]*gradient|gradients? (of|is|are)[^.]*(none|missing|zero|cut)",
        ("self.encoder(wave).detach()", "self.encoder(wave)"),
    ),
    _wrong(
        "traffic_experts",
        "The experts are in a Python list, so the optimizer does not have their parameters.",
        r"ModuleList|python list|plain list|not (registered|in the optimizer|given to|part of|updated|trained|known)|(optimizer|never)[^.]*(missing|lacks|does not (have|hold|get|know)|never updat|trained)",
        (
            "self.experts = [nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(count)]",
            "self.experts = nn.ModuleList([nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, 1)) for _ in range(count)])",
        ),
    ),
    _wrong(
        "cells_segment",
        "Losses are summed and kept with their graphs, so memory grows with every step.",
        r"(loss|tensor)[^.]*(graph|detach|history|kept|alive)|graph[^.]*(kept|alive|grow|hold)|memory[^.]*grow|leak",
        (
            "        running_loss += loss\n        history.append(loss)\n",
            "        running_loss += loss.item()\n        history.append(loss.item())\n",
        ),
    ),
    _wrong(
        "sensors_gru",
        "zero_grad is called between backward and step, so the weights never change.",
        r"zero_grad|(weights|parameters)[^.]*(never|not|do not)[^.]*(chang|updat|mov)|gradients?[^.]*(none|missing|cleared|zeroed|empty)|no gradient",
        (
            "        loss.backward()\n        self.optimizer.zero_grad()\n",
            "        self.optimizer.zero_grad()\n        loss.backward()\n",
        ),
    ),
    _wrong(
        "satellite_val",
        "The validation reads the training loader.",
        r"(validat|evaluat|test)[^.]*(train(ing)? (data|set|loader|samples|rows)|same (data|loader|samples|rows)|overlap|also)|leak",
        ("validate(model, train_loader, loss_fn)", "validate(model, val_loader, loss_fn)"),
    ),
    _wrong(
        "fraud_payments",
        "The model ends with a sigmoid and BCEWithLogitsLoss applies another.",
        r"sigmoid",
        ("return self.sigmoid(self.out(self.body(x)))", "return self.out(self.body(x))"),
    ),
    _wrong(
        "market_returns",
        "The logarithm of zero volumes makes the loss NaN from the first steps.",
        r"\bnan\b|not finite|non-?finite|infinite|\binf\b",
        ("torch.log(v)", "torch.log1p(v)"),
    ),
    _wrong(
        "intents",
        "nll_loss gets probabilities where it needs log-probabilities.",
        r"nll|log.?(softmax|prob)|probabilit",
        ("return F.softmax(self.fc(last[0]), dim=1)", "return F.log_softmax(self.fc(last[0]), dim=1)"),
    ),
    _wrong(
        "gan_rings",
        "The critic's gradients are never zeroed: those of all its steps, and of the generator's, add up.",
        r"zero_grad|gradients? (are |is )?(never|not) (cleared|zeroed|reset)|gradients?[^.]*(add up|accumulat)",
        ("    def train_critic(self, real):\n", "    def train_critic(self, real):\n        self.opt_d.zero_grad()\n"),
    ),
    _wrong(
        "new_head",
        "The optimizer was made before the head was replaced, so the new head is not trained.",
        r"not (in the optimizer|given to|part of|updated|trained|known)|(optimizer|never)[^.]*(missing|lacks|does not (have|hold|get|know)|never updat|trained|old|replaced)",
        (
            "    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\n    model.head = nn.Linear(720, 6)\n",
            "    model.head = nn.Linear(720, 6)\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\n",
        ),
    ),
    # --- the training is slow
    _slow(
        "audit_log",
        "Every step writes a log line and waits until the disk has it (fsync).",
        r"fsync|flush|writ(es|ing|e) [^.]*(file|log|disk)|logg?(ing|s)\b|disk",
        ("        os.fsync(self.file.fileno())\n", ""),
        ("        self.file.flush()\n", ""),
    ),
    _slow(
        "digits_vae",
        "Every step prints whole tensors.",
        r"print|console|stdout|formatt?(ing|ed)|tensor[^.]*text",
        (
            '        print("epoch", epoch, "step", i, "loss", loss, "mu", mu, "logvar", logvar)\n',
            '        if i % 50 == 0:\n            print("step", i, "loss", loss.item())\n',
        ),
    ),
    _slow(
        "board",
        "Every step sends histograms of all weights and gradients to TensorBoard.",
        r"histogram|tensorboard|tracker|logg?(ing|s)\b|SummaryWriter",
        (
            "        for name, parameter in self.model.named_parameters():\n",
            "        for name, parameter in [] if self.steps % 100 else self.model.named_parameters():\n",
        ),
    ),
    _slow(
        "trip_times",
        "__getitem__ computes a sample's features in slow Python loops.",
        r"__getitem__|dataset[^.]*(python|slow|cost|comput)|(load|data|input|worker)[^.]*(wait|slow|starv|num_workers)|wait[^.]*(data|load|input|batch)",
        (
            "    def __getitem__(self, index):\n        return self.features(index)\n",
            "    def __getitem__(self, index):\n        if not hasattr(self, 'made'):\n"
            "            self.made = [self.features(i) for i in range(len(self))]\n        return self.made[index]\n",
        ),
    ),
    _slow(
        "png_folder",
        "Pictures are decoded and made smaller in __getitem__, in the main process, again in every epoch.",
        r"decod|__getitem__|(load|data|input|worker)[^.]*(wait|slow|starv|num_workers)|wait[^.]*(data|load|input|batch)|num_workers",
        (
            "        return self.load(self.paths[i]), int(self.paths[i].name[0])\n",
            "        if not hasattr(self, 'made'):\n            self.made = [self.load(path) for path in self.paths]\n"
            "        return self.made[i], int(self.paths[i].name[0])\n",
        ),
    ),
    _slow(
        "spectra",
        "Each batch picks columns of a matrix that lies row by row: one number per cache line.",
        r"contiguous|strid|layout|transpos|gather|index(ing|_select)?\b|column",
        ("recorded = torch.randn(channels, shots)\n", "recorded = torch.randn(channels, shots).T.contiguous()\n"),
        ("strength = recorded[:20].sum(0) / 4\n", "strength = recorded[:, :20].sum(1) / 4\n"),
        ("yield recorded[:, picked].T, strength[picked]", "yield recorded[picked], strength[picked]"),
    ),
    _slow(
        "short_epochs",
        "Twelve workers start anew for every epoch of four batches.",
        r"persistent|worker[^.]*(start|new|again|every epoch|each epoch|too many|more)|(start|spawn|too many|more)[^.]*worker|too.many.workers",
        ("num_workers=12", "num_workers=0"),
    ),
    _slow(
        "ocean_mlp",
        "More threads than cores: set_num_threads asks for eight per core.",
        r"thread",
        ("torch.set_num_threads(max(16, 8 * (os.cpu_count() or 2)))", "torch.set_num_threads(os.cpu_count() or 2)"),
    ),
    _slow(
        "credit_rows",
        "Batches of one sample.",
        r"batch.size|(tiny|small|single)[^.]*batch|batch(es)?[^.]*(tiny|small|one|1\b)|one sample",
        ("batch_size=1,", "batch_size=64,"),
    ),
    _slow(
        "crops",
        "The whole validation set is evaluated after every second step.",
        r"evaluat|validat|(forward|inference)[^.]*(no_grad|without gradient)",
        ("eval_every=2", "eval_every=60"),
    ),
    _slow(
        "safe_keeping",
        "The model and the optimizer are saved after every step.",
        r"checkpoint|torch\.save|sav(es|ing|e)\b|serializ",
        ("        save(model, optimizer, step)\n", "        if step % 60 == 0:\n            save(model, optimizer, step)\n"),
    ),
    _slow(
        "positions",
        "The table of positions, which never changes, is computed by Python loops in every forward pass.",
        r"constant|again (in|at|for|on)? ?(every|each)|recomput|same (value|result|tensor)|never chang|python loop|in python|python",
        ("return x + self.table(x.size(1))", "return x + self.ready"),
    ),
    _slow(
        "point_sets",
        "The forward pass loops over the samples of the batch in Python.",
        r"loop|one (by|after) |per.sample|launch|many (small|tiny)|small (op|kernel|call)|tiny (op|kernel|call)|vectori",
        (
            "        answers = []\n        for points in sets:\n            answers.append(self.out(self.point(points).max(0).values))\n        return torch.stack(answers)\n",
            "        return self.out(self.point(sets).max(1).values)\n",
        ),
    ),
    _slow(
        "power_load",
        "The recurrent network loops over the time in Python, cell by cell.",
        r"loop|one (by|after) |LSTM|cell|launch|many (small|tiny)|small (op|kernel|call)|tiny (op|kernel|call)|time.?step",
        (
            "        self.cell = nn.LSTMCell(inputs, hidden)\n",
            "        self.cell = nn.LSTM(inputs, hidden, batch_first=True)\n",
        ),
        (
            "        h = c = x.new_zeros(len(x), self.hidden)\n        for t in range(x.size(1)):\n            h, c = self.cell(x[:, t], (h, c))\n        return h\n",
            "        return self.cell(x)[0][:, -1]\n",
        ),
    ),
    _slow(
        "mean_teacher",
        "The teacher is copied whole (deepcopy) in every step.",
        r"deepcopy|copy|copies",
        ("    fresh = copy.deepcopy(teacher)\n", "    fresh = teacher\n"),
    ),
    _slow(
        "many_series",
        "Adam goes through 2,400 small tensors one after another (foreach=False).",
        r"foreach|fused|optimizer[^.]*(small|many|tensors?|one by one|parameters)|optimizer.step",
        ("foreach=False", "fused=True"),
    ),
    _slow(
        "meta_fit",
        "The gradients are computed with create_graph=True, though nobody differentiates them.",
        r"create_graph|double backward|second[- ]order|graph of the (gradient|backward)|twice",
        ("return torch.autograd.grad(loss, parameters, create_graph=True)", "return torch.autograd.grad(loss, parameters)"),
    ),
    _slow(
        "pendulum",
        "Data and model are in double precision (float64).",
        r"float64|double|fp64|64.bit",
        (
            "x, y = torch.from_numpy(angles), torch.from_numpy(speeds)",
            "x, y = torch.from_numpy(angles).float(), torch.from_numpy(speeds).float()",
        ),
    ),
    _slow(
        "loan_lists",
        "Each batch is turned into Python lists and back into a tensor.",
        r"tolist|python (list|number|float|object)|list|torch\.tensor\(|element by element",
        ("return torch.tensor([[float(v) for v in row] for row in values.tolist()])", "return values"),
    ),
    _slow(
        "deep_policy",
        "Gradients are clipped row by row with .item() in a Python loop.",
        r"clip|\.item|norm\b|sync|loop|many (small|tiny)|small (op|kernel|call)|launch",
        (
            "    for parameter in model.parameters():\n        for row in parameter.grad.view(-1, parameter.grad.shape[-1]):\n"
            "            norm = row.norm().item()\n            if norm > limit:\n                row.mul_(limit / norm)\n",
            "    nn.utils.clip_grad_norm_(model.parameters(), limit)\n",
        ),
    ),
    _slow(
        "gene_panels",
        "The collate function turns every number of a batch into a Python float.",
        r"collate|\.item|python (list|number|float|object)|element by element|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        (
            "    levels = [[value.item() for value in row] for row, _ in batch]\n    return torch.tensor(levels), ",
            "    return torch.stack([row for row, _ in batch]), ",
        ),
    ),
    _slow(
        "bike_frame",
        "__getitem__ takes rows out of a data frame with .iloc.",
        r"iloc|pandas|data ?frame|__getitem__|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        (
            "        row = self.frame.iloc[i]\n"
            '        return torch.tensor(row[COLUMNS].to_numpy(dtype=np.float32)), torch.tensor([row["rented"]], dtype=torch.float32)\n',
            "        if not hasattr(self, 'table'):\n            self.table = torch.from_numpy(self.frame.to_numpy(dtype=np.float32))\n"
            "        return self.table[i, :24], self.table[i, 25:]\n",
        ),
    ),
    _slow(
        "film_reviews",
        "__getitem__ cuts each text into words with regular expressions, again in every epoch.",
        r"regular expression|regex|token|findall|__getitem__|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        (
            "        text, kind = self.texts[i]\n        return self.encode(text), kind\n",
            "        if not hasattr(self, 'made'):\n            self.made = [(self.encode(text), kind) for text, kind in self.texts]\n        return self.made[i]\n",
        ),
    ),
    _slow(
        "archive_lines",
        "__getitem__ unpacks the gzip file from its beginning for every line.",
        r"gzip|decompress|unpack|open(s|ing|ed)?\b[^.]*file|__getitem__|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        (
            '        with gzip.open(self.path, "rt") as file:\n            for number, line in enumerate(file):  # noqa: B007\n                if number == wanted:\n                    break\n',
            "        if not hasattr(self, 'text'):\n            with gzip.open(self.path, 'rt') as file:\n                self.text = list(file)\n        line = self.text[wanted]\n",
        ),
    ),
    _slow(
        "cartpole_replay",
        "Each pick from the replay memory goes through all its 200,000 chances (choice with p, without replacement).",
        r"choice|sampl(e|ing|er)|replay|random|numpy|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        (
            "        chance = self.priority / self.priority.sum()\n        return self.rng.choice(self.size, n, replace=False, p=chance)\n",
            "        return self.rng.integers(0, self.size, n)\n",
        ),
    ),
    _slow(
        "tickets",
        "Texts of some 25 words are padded to 384.",
        r"pad",
        ("    longest = LONGEST\n", "    longest = max(len(ticket) for ticket, _ in batch)\n"),
    ),
    _slow(
        "machine_stream",
        "Each step reads the whole stream again from its beginning, so steps take longer and longer.",
        r"grow|longer and longer|(step|time)[^.]*(ris|increas|slower)|whole (history|stream|sequence)",
        (
            "        self.seen = torch.cat([self.seen, x], 1)\n        states, _ = self.rnn(self.seen)\n        return states[:, -x.size(1) :]\n",
            "        states, state = self.rnn(x, self.state)\n        self.state = state.detach()\n        return states\n",
        ),
    ),
    _slow(
        "ad_clicks",
        "After every step the area under the curve is computed over all answers so far.",
        r"metric|roc|auc|sklearn|scikit|grow|meter",
        (
            "        auc = meter.value()\n        if step % 20 == 0:\n",
            "        if step % 20 == 0:\n            auc = meter.value()\n",
        ),
    ),
    _slow(
        "next_word",
        "Words are looked up as one-hot vectors times a matrix, not as an embedding.",
        r"one.?hot|embedding",
        (
            "return self.table(F.one_hot(words, self.count).float())",
            "return F.embedding(words, self.table.weight.t())",
        ),
    ),
    _slow(
        "molecules",
        "Anomaly detection of autograd is left on.",
        r"anomaly",
        ("torch.autograd.set_detect_anomaly(True)\n", ""),
    ),
    _slow(
        "weather_csv",
        "The CSV file is read and parsed again for every batch.",
        r"csv|pars|read(s|ing)?\b[^.]*file|file|again|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        ("        table = self.read()\n", "        table = self.read() if self.kept is None else self.kept\n"),
    ),
    _slow(
        "steps_not_epochs",
        "A new iterator of the loader, with new workers, is made for every step.",
        r"iter(ator|\()|persistent|worker[^.]*(start|new|again)|(start|spawn)[^.]*worker|re-?creat",
        (
            "        source = iter(loader)\n        features, label = next(source)\n",
            "        features, label = next(source, None) or next(source := iter(loader))\n",
        ),
    ),
    _slow(
        "faces_gan",
        "A grid of samples is written as PNG after every step.",
        r"png|picture|image|writ|sav(es|ing|e)\b|sample",
        (
            "        save_samples(generator, fixed, step)\n",
            "        if step % 50 == 0:\n            save_samples(generator, fixed, step)\n",
        ),
    ),
    _slow(
        "scans_h5",
        "For each sample HDF5 unpacks a whole compressed chunk of 256.",
        r"hdf5|h5py|chunk|decompress|unpack|__getitem__|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        ('        self.scans = self.file["scans"]\n', '        self.scans = self.file["scans"][:]\n'),
    ),
    _slow(
        "orders_db",
        "Each sample is a query that goes through the whole table, for want of an index.",
        r"sql|query|queries|data ?base|__getitem__|(load|data|input)[^.]*(wait|slow|starv)|wait[^.]*(data|load|input|batch)",
        ("    base.commit()\n", '    base.execute("create index by_number on orders (number)")\n    base.commit()\n'),
    ),
    _slow(
        "keep_memory_low",
        "Every step ends with gc.collect().",
        r"gc\.collect|garbage|\bgc\b",
        ("        tidy()\n", ""),
    ),
    _slow(
        "hf_small",
        "The Trainer evaluates the whole evaluation set after every second step.",
        r"evaluat|validat|eval_steps|(forward|inference)[^.]*(no_grad|without gradient)",
        ("eval_steps=2,", "eval_steps=60,"),
    ),
    _slow(
        "student",
        "The teacher runs with gradients on, so the backward pass goes through it as well for nothing.",
        r"(unused|never used|no optimizer|nobody|not in|for nothing|useless|needless)[^.]*grad|grad[^.]*(unused|never used|no optimizer|nobody|not in|for nothing|useless|needless|not train)|no_grad|requires_grad|frozen|freez",
        ("        return self.teacher(x)\n", "        with torch.no_grad():\n            return self.teacher(x)\n"),
    ),
    _slow(
        "borrowed_features",
        "The backbone is not trained, yet its gradients are computed in every step.",
        r"(unused|never used|no optimizer|nobody|not in|for nothing|useless|needless)[^.]*grad|grad[^.]*(unused|never used|no optimizer|nobody|not in|for nothing|useless|needless|not train)|no_grad|requires_grad|frozen|freez",
        ("        features = self.backbone(x)\n", "        with torch.no_grad():\n            features = self.backbone(x)\n"),
    ),
    _slow(
        "songs",
        "The gradient of an embedding of 200,000 rows is dense, so Adam updates every row in each step.",
        r"sparse|embedding|dense",
        ("self.vectors = nn.Embedding(count, dim)", "self.vectors = nn.Embedding(count, dim, sparse=True)"),
        (
            "return torch.optim.Adam(model.parameters(), lr=1e-3)",
            "return torch.optim.SparseAdam(list(model.parameters()), lr=1e-3)",
        ),
    ),
]

SICK = sorted(_ALL, key=lambda sick: sick.name)  # by name: even ones (the 2nd, 4th, ...) are worked on, odd ones only counted
WORKED_ON = SICK[1::2]
UNSEEN = SICK[0::2]
