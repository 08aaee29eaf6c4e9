"""Thirty more sick scripts, as in `_sick_list`, by someone who had seen neither the rules nor the first sixty."""

from __future__ import annotations

from _sick_list import Sick

_FAULTS: list[tuple[str, str, str, str, tuple[tuple[str, str], ...]]] = [
    # --- slow
    (
        "galaxy_stamps",
        "slow",
        "Every __getitem__ opens the compressed .npz archive anew and unpacks all stamps to take one of them.",
        (
            r"np\.load|\bnpz\b|archive|decompress|unpack|zipfile|zlib|inflat|__getitem__"
            r"|(open|read|load)\w*[^.]*(\bfiles?\b|disk)"
            r"|(\bfiles?\b|disk)[^.]*(open|read|load|every|each|per item)"
            r"|(open|read|load)\w*[^.]*(every|each|per) (item|sample|access|stamp|row)|dataset[^.]*slow"
        ),
        (
            (
                "        self.path = path\n",
                (
                    "        with np.load(path) as archive:\n"
                    '            self.stamps, self.kinds = archive["stamps"], archive["kinds"]\n'
                ),
            ),
            (
                (
                    "        with np.load(self.path) as archive:\n"
                    '            stamp, kind = archive["stamps"][row], archive["kinds"][row]\n'
                ),
                "        stamp, kind = self.stamps[row], self.kinds[row]\n",
            ),
        ),
    ),
    (
        "satellite_tiles",
        "slow",
        "The collate function makes the batch with torch.tensor from a list of numpy arrays, element by element.",
        (
            r"torch\.tensor\b|list of (numpy|np|ndarray|array)|np\.(stack|array|asarray)|from_numpy|collat"
            r"|element by element|list[^.]*ndarray|extremely slow|assembl\w*[^.]*batch"
            r"|(convert|conversion|copy|copies)[^.]*(numpy|ndarray|list)"
        ),
        (
            (
                "torch.tensor([tile for tile, _ in items])",
                "torch.from_numpy(np.stack([tile for tile, _ in items]))",
            ),
        ),
    ),
    (
        "pendulum_field",
        "slow",
        "Anomaly detection of autograd is left on for the whole training.",
        r"anomaly|detect_anomaly|traceback[^.]*(every|each) (op|node|forward)",
        (
            (
                "torch.autograd.set_detect_anomaly(True)\n",
                "",
            ),
        ),
    ),
    (
        "bike_demand",
        "slow",
        "The whole validation set is evaluated after every training step instead of once per epoch.",
        (
            r"(validat|evaluat|no_grad|\beval\b|inference|held.out)[^.]*(every|each|per|after|too often|frequent"
            r"|as often|share|of the (time|step)|%)|(every|each|per)[^.]*(validat|evaluat|\beval\b)"
        ),
        (
            (
                "            curve.append(evaluate(model, val_x, val_y))\n",
                "        curve.append(evaluate(model, val_x, val_y))\n",
            ),
        ),
    ),
    (
        "sketch_autoencoder",
        "slow",
        "A checkpoint with model and optimizer state is written to disk after every step.",
        (
            r"torch\.save|checkpoint|\bsav(e|es|ed|ing)\b|written to disk|writ[^.]*(disk|file)|seriali[sz]|pickl"
            r"|state_dict"
        ),
        (
            (
                (
                    '            state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
                    '            torch.save(state, folder / "last.pt")\n'
                ),
                (
                    '        state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
                    '        torch.save(state, folder / "last.pt")\n'
                ),
            ),
        ),
    ),
    (
        "ad_ranking",
        "slow",
        "The AUC of all predictions so far is computed anew after every step: its cost grows with the step number.",
        (
            r"\bauc\b|\broc|metric|argsort|\bsort|torch\.cat\b|concat|\bgrow"
            r"|(slower|longer)[^.]*(and|every|each|with|over)|quadratic|recomput|so far"
            r"|(all|every) (past|previous|earlier)"
        ),
        (
            (
                "            curve.append(roc_auc(torch.cat(scores), torch.cat(labels)))\n",
                "        curve.append(roc_auc(torch.cat(scores), torch.cat(labels)))\n",
            ),
        ),
    ),
    (
        "ecg_rhythm",
        "slow",
        "The LSTM runs as a Python loop of LSTMCell over the time steps instead of one nn.LSTM over the sequence.",
        (
            r"lstm_?cell|nn\.lstm|(python|for)[- ]loop|loops? over[^.]*(time|step|sequence)"
            r"|(one|each|every) time ?step|time ?step by|many (small|tiny|short)"
            r"|(small|tiny|short) (op|kernel|call)|called \d+ times|dispatch|vectori[sz]"
        ),
        (
            (
                "        self.recurrent = nn.LSTMCell(LEADS, hidden)\n",
                "        self.recurrent = nn.LSTM(LEADS, hidden, batch_first=True)\n",
            ),
            (
                (
                    "        h = signal.new_zeros(len(signal), self.hidden)\n"
                    "        c = signal.new_zeros(len(signal), self.hidden)\n"
                    "        states = []\n"
                    "        for t in range(signal.shape[1]):\n"
                    "            h, c = self.recurrent(signal[:, t], (h, c))\n"
                    "            states.append(h)\n"
                    "        states = torch.stack(states, dim=1)\n"
                ),
                "        states, _ = self.recurrent(signal)\n",
            ),
        ),
    ),
    (
        "ticket_intents",
        "slow",
        "Every batch is padded to the limit of 160 words although tickets have about 20: most of the work is on padding.",
        (
            r"\bpad|max(imum)?[ _]len|fixed (length|width)|longest|bucket|sequence length"
            r"|(mask|blank|empty)[^.]*(%|most|position|token)"
        ),
        (
            (
                "    width = LIMIT\n",
                "    width = max(len(ticket) for ticket, _ in batch)\n",
            ),
        ),
    ),
    (
        "grid_dqn",
        "slow",
        "The target networks run without no_grad, so backward also goes through the two frozen snapshots for nothing.",
        (
            r"no_grad|detach|inference_mode|requires_grad|target[^.]*(net|gradient|graph|backward)|snapshot|frozen"
            r"|gradients?[^.]*(unused|never used|not used|nobody|for nothing|thrown|wasted|no optimi[sz]er)"
            r"|(not in|not held by|outside|in no|by no|belong to no)[^.]{0,30}optimi[sz]er|unused grad"
            r"|wasted?[^.]*backward|backward[^.]*(for nothing|wasted|unused)"
        ),
        (
            (
                "    ahead = sum(net(after) for net in snapshots) / len(snapshots)\n",
                ("    with torch.no_grad():\n        ahead = sum(net(after) for net in snapshots) / len(snapshots)\n"),
            ),
        ),
    ),
    (
        "river_flow",
        "slow",
        "Model and data are float64 because numpy made them so: everything takes twice as long as in float32.",
        r"float64|\bdouble|fp64|64[- ]bit|float32|dtype|precision",
        (
            (
                "torch.from_numpy(past.copy()), torch.from_numpy(flow.copy())",
                "torch.from_numpy(past.copy()).float(), torch.from_numpy(flow.copy()).float()",
            ),
            (
                "Discharge(train_x.shape[1]).double()",
                "Discharge(train_x.shape[1])",
            ),
        ),
    ),
    (
        "book_club",
        "slow",
        "Large embedding tables get dense gradients and dense Adam updates although a batch touches few rows.",
        r"sparse|dense (grad|adam|update)|embedding|(rows?|tables?)\b[^.]*(touch|updat|look|few|used)",
        (
            (
                "nn.Embedding(READERS, DIM)",
                "nn.Embedding(READERS, DIM, sparse=True)",
            ),
            (
                "nn.Embedding(BOOKS, DIM)",
                "nn.Embedding(BOOKS, DIM, sparse=True)",
            ),
            (
                "torch.optim.Adam(tables.parameters(), lr=1e-2, fused=True)",
                "torch.optim.SparseAdam(tables.parameters(), lr=1e-2)",
            ),
        ),
    ),
    (
        "shop_sessions",
        "slow",
        "The output layer over 3000 products runs at all 24 positions, and only the last position is used.",
        (
            r"\blast (position|time|token|state|element|output)|only[^.]*(the last|used|a part|fraction|\d+ ?%)"
            r"|thrown away|discard|unused|never (used|read)|not used|(all|every) (positions?|time ?steps?|tokens?)"
            r"|\[:, -1\]|\bslic"
        ),
        (
            (
                "self.out(states)[:, -1]",
                "self.out(states[:, -1])",
            ),
        ),
    ),
    (
        "texture_codes",
        "slow",
        "The distances to the codes come from a broadcast rows x codes x dim tensor, not from cdist or a matrix product.",
        (
            r"cdist|broadcast|pairwise|distanc|matmul|matrix (product|multipl)"
            r"|(large|big|huge)[^.]*(intermediate|temporar|tensor)|intermediate|temporar|memory[- ](traffic|bound)"
            r"|codebook|nearest"
        ),
        (
            (
                "(rows[:, None, :] - self.codes[None, :, :]).pow(2).sum(dim=-1)",
                "self.codes.pow(2).sum(dim=-1) - 2 * rows @ self.codes.t()",
            ),
        ),
    ),
    (
        "badge_portraits",
        "slow",
        "The model is called three times per step on the same images, once for each head's loss.",
        (
            r"(model|net\w*|forward|trunk|module|layers?)\b[^.]*(three times|three|3 times|3x|\b3\b|several times"
            r"|multiple times|more than once|twice|again|repeated)"
            r"|(same|identical|repeated|duplicate|redundant)[^.]*(input|forward|batch|call|pass|comput)"
            r"|(three|3|several|multiple) (forward|times|calls|passes)"
        ),
        (
            (
                (
                    "        loss = F.mse_loss(net(faces)[0], age[rows])\n"
                    "        loss = loss + F.binary_cross_entropy_with_logits(net(faces)[1], glasses[rows])\n"
                    "        loss = loss + F.cross_entropy(net(faces)[2], mood[rows])\n"
                ),
                (
                    "        guess = net(faces)\n"
                    "        loss = F.mse_loss(guess[0], age[rows])\n"
                    "        loss = loss + F.binary_cross_entropy_with_logits(guess[1], glasses[rows])\n"
                    "        loss = loss + F.cross_entropy(guess[2], mood[rows])\n"
                ),
            ),
        ),
    ),
    (
        "land_cover",
        "slow",
        "The confusion matrix is counted in a Python loop over single pixels.",
        (
            r"confusion|bincount|pixel|metric|(python|for)[- ]loop|loops? over|iterat\w*[^.]*(tensor|element)"
            r"|element by element|one (element|value|number) at a time|index_put|__setitem__|vectori[sz]"
            r"|many (small|tiny|short)|(small|tiny|short) (op|kernel|call)|unbind"
            r"|(single|individual) (element|value|number|item)"
        ),
        (
            (
                (
                    "        for t, p in zip(cover.flatten(), predicted.flatten(), strict=False):\n"
                    "            self.matrix[t, p] += 1\n"
                ),
                (
                    "        cells = torch.bincount(cover.flatten() * COVERS + predicted.flatten(), minlength=COVERS**2)\n"
                    "        self.matrix += cells.view(COVERS, COVERS)\n"
                ),
            ),
        ),
    ),
    (
        "solubility",
        "slow",
        "gc.collect() runs a full garbage collection after every step.",
        r"\bgc\b|garbage|gc\.collect|collector",
        (
            (
                "            gc.collect()\n",
                "",
            ),
        ),
    ),
    (
        "card_payments",
        "slow",
        "The DataLoader picks and collates 1024 single rows per batch in Python although all data are tensors in memory.",
        (
            r"data ?loader|__getitems?__|collat|per[- ](row|item|sample)"
            r"|(row|item|sample|example) (by|at a) (row|item|sample|example|time)"
            r"|(single|individual) (row|item|sample)|(already|all) in memory|in-memory|index[^.]*whole batch"
            r"|tensor indexing"
        ),
        (
            (
                "from torch.utils.data import DataLoader, Dataset\n",
                "from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler\n",
            ),
            (
                "DataLoader(payments, batch_size=1024, shuffle=True)",
                "DataLoader(payments, sampler=BatchSampler(RandomSampler(payments), 1024, False), batch_size=None)",
            ),
        ),
    ),
    (
        "minute_load",
        "slow",
        "next(iter(loader)) starts a new pass, with a new permutation of half a million indices, for every step.",
        (
            r"next\(iter|\biter\(|iterator|permut|randperm|shuffl|sampler"
            r"|(new|fresh|re-?creat|re-?start|re-?build|start)\w*[^.]*(pass|loader|epoch)"
            r"|data ?loader[^.]*(new|again|every step|each step|per step|re-?start|re-?creat)"
        ),
        (
            (
                "import argparse\n",
                "import argparse\nimport itertools\n",
            ),
            (
                ("    for step in range(args.steps):\n        past, following = next(iter(loader))\n"),
                (
                    "    endless = itertools.chain.from_iterable(itertools.repeat(loader))\n"
                    "    for step, (past, following) in enumerate(itertools.islice(endless, args.steps)):\n"
                ),
            ),
        ),
    ),
    # --- wrong
    (
        "rune_glyphs",
        "wrong",
        "The model ends in a softmax and the loss is CrossEntropyLoss, which takes logits: softmax is applied twice.",
        r"softmax|logits|probabilit|normali[sz]ed (twice|already|output)|sum to (1|one)",
        (
            (
                "return F.softmax(self.fc2(x), dim=1)",
                "return self.fc2(x)",
            ),
        ),
    ),
    (
        "flat_rents",
        "wrong",
        "The prediction has shape (batch, 1) and the target (batch,): mse_loss broadcasts to batch x batch.",
        r"broadcast|shape|squeeze|(target|prediction|input) size|dimension|\(\d+, ?1\)",
        (
            (
                "F.mse_loss(model(xb), yb)",
                "F.mse_loss(model(xb).squeeze(1), yb)",
            ),
        ),
    ),
    (
        "verse_tagger",
        "wrong",
        "The logits are brought to (batch, tags, length) with view instead of transpose, which mixes up positions and tags.",
        (
            r"transpos|permut|\bview\b|reshap|mix(es|ed|ing)?[ -]?up|scrambl|class (axis|dim)|axis order|movedim"
            r"|interleav"
        ),
        (
            (
                "logits.view(len(words), TAGS, -1)",
                "logits.transpose(1, 2)",
            ),
        ),
    ),
    (
        "tide_tcn",
        "wrong",
        "The residual blocks are kept in a plain Python list: their parameters are not registered and never trained.",
        (
            r"module_?list|(python|plain) list|registered"
            r"|(\bnot|never|miss|absent|outside|without|\bnone|unknown)[^.]*(optimi[sz]er|trained|updated|parameters\(\))"
            r"|(optimi[sz]er|parameters\(\))[^.]*(\bnot|miss|lack|without|omit|never)"
        ),
        (
            (
                "[Residual(channels, 2**level) for level in range(depth)]",
                "nn.ModuleList([Residual(channels, 2**level) for level in range(depth)])",
            ),
        ),
    ),
    (
        "bean_sorting",
        "wrong",
        "The cosine schedule is stepped after every batch although T_max counts epochs.",
        (
            r"schedul|t_max|cosine"
            r"|(learning[- ]rate|\blr\b)[^.]*(zero|fall|fell|drop|decay|cycle|rise|back|swing"
            r"|oscill|too (fast|soon|early))"
        ),
        (
            (
                ("            scheduler.step()\n            total += loss.item() * len(rows)\n"),
                ("            total += loss.item() * len(rows)\n        scheduler.step()\n"),
            ),
        ),
    ),
    (
        "plankton_net",
        "wrong",
        "After the first validation the model stays in eval mode: dropout and batch norm are off from then on.",
        (
            r"eval(uation)?[- ]mode|train(ing)?[- ]mode|\.eval\(|\.train\(|\bin eval\b"
            r"|dropout[^.]*(off|inactive|not active|disabled|no effect)|(running|frozen)[^.]*statistic"
        ),
        (
            (
                "    model.train()\n    for epoch in range(8):\n",
                "    for epoch in range(8):\n        model.train()\n",
            ),
        ),
    ),
    (
        "wrist_gestures",
        "wrong",
        "The training data lie in the order of the classes and are not shuffled: most batches hold a single class.",
        (
            r"shuffl|sorted|(one|single|same|only one|1)[^.]{0,20}(class|label|target)"
            r"|order(ed)?[^.]*(class|label|data|batch)|class[^.]*order|same order|sequential"
        ),
        (
            (
                "DataLoader(train_set, batch_size=40)",
                "DataLoader(train_set, batch_size=40, shuffle=True)",
            ),
        ),
    ),
    (
        "folk_melodies",
        "wrong",
        "The gradients are clipped before backward, when there are none: the clipping has no effect.",
        r"clip",
        (
            (
                ("            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n            loss.backward()\n"),
                ("            loss.backward()\n            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n"),
            ),
        ),
    ),
    (
        "bearing_noise",
        "wrong",
        "The output of the encoder is taken with .data, which cuts the graph: the encoder is never trained.",
        (
            r"\.data\b|detach"
            r"|\b(no|without|never|not|none)\b[^.]{0,60}(gradient|\bgrad\b|trained|updated|learns?\b)"
            r"|\bgrad\b[^.]*none|(graph|backward)[^.]*(cut|broken|interrupt|stop|does not reach|never reach)"
            r"|(cut|broken|interrupt)[^.]*graph|encoder[^.]*(frozen|unchanged|not|never)"
        ),
        (
            (
                "self.encoder(x).data\n",
                "self.encoder(x)\n",
            ),
        ),
    ),
    (
        "heart_screening",
        "wrong",
        "F.dropout is called without training=self.training, so dropout is also active in the evaluation.",
        (
            r"dropout|self\.training"
            r"|(eval|validat|test|predict)\w*[^.]*(random|noisy|stochastic|differ|not determinis)|stochastic"
        ),
        (
            (
                "F.dropout(x, self.p)",
                "F.dropout(x, self.p, training=self.training)",
            ),
        ),
    ),
    (
        "ship_tracks",
        "wrong",
        "The transformer layer lacks batch_first=True: attention runs across the batch instead of along the track.",
        (
            r"batch_first|batch (axis|dim)|(across|between)[^.]*(batch|samples|rows|examples)"
            r"|(depend|mix|leak|influenc|attend)\w*[^.]*(batch|other|samples?|rows?|examples?)"
            r"|attention[^.]*(axis|dim|batch)|(wrong|first|second) (axis|dim)|swapped"
        ),
        (
            (
                "nn.TransformerEncoderLayer(dim, heads, dim_feedforward=2 * dim, dropout=0.1)",
                "nn.TransformerEncoderLayer(dim, heads, dim_feedforward=2 * dim, dropout=0.1, batch_first=True)",
            ),
        ),
    ),
    (
        "parking_camera",
        "wrong",
        "The images go into the network as numbers from 0 to 255: they are never scaled.",
        (
            r"\b255\b|\b(un|re)?-?scal(ed?|ing)\b|normali[sz]|standardi[sz]"
            r"|inputs?\b[^.]*(large|big|range|magnitude|mean|std)|raw (pixel|byte)|uint8|pixel"
        ),
        (
            (
                "permute(0, 3, 1, 2).float()",
                "permute(0, 3, 1, 2).float() / 127.5 - 1",
            ),
        ),
    ),
]

NEW = [Sick(*fault) for fault in _FAULTS]
