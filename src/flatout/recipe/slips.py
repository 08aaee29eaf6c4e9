"""Words of other trainers (Lightning, HF Trainer, fastai, Keras), and the answer to each: how it is written here.

The command line uses this too, so nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable

_EPOCHS = 'the length is budget: "5 epochs"'
_STEPS = 'the length is budget: "2000 steps"'
_BATCH = "rows per step are batch: 64, over all devices"
_SPLIT = "flatout splits a batch that does not fit by itself; --set micro_batch=16 fixes it"
_DEVICE = "the device is a setting: settings: {device: cuda}, or --set device=cuda; the default is what is there"
_DEVICES = "start it on several devices with flatout run RECIPE --devices 2, or with torchrun"
_PRECISION = "the plan measures and chooses it; to fix it: settings: {precision: bf16}, or --set precision=bf16"
_LOSS = "the loss belongs to objective: classify, binary, multilabel, regress, next_token, or a function of yours"
_SCHEDULE = "it is schedule: cosine, or {cosine: {warmup: 0.1}}"
_CLIP = "it is clip: 1.0"
_EVALUATE = 'it is evaluate: "1 epoch", or "500 steps"'
_SAVE = "checkpoints are written by themselves; settings: {checkpoint_every: 500} sets how often"
_LOG = "settings: {log_every: 50} sets how often; run.events() has all of it, fo.run(observers=[...]) gets it live"
_RUNS = "it is the runs folder: fo.run(..., runs='runs'), or --runs runs"
_HELD = "rows to validate on belong to data: holdout: 0.2, or validation: FILE; fo.run(data=df, holdout=0.2) takes them too"
_DATA = "it is data: a DataFrame, (x, y), a Dataset, a DataLoader or a path"
_RESUME = "the same command resumes an unfinished run by itself; init_from: FILE starts from other weights"
_WORKERS = "flatout chooses and adapts the workers; fo.data.dataset(..., workers=4) fixes them"
_CALLBACKS = "early stopping is early_stop: 3, the rest is built in; fo.run(observers=[...]) gets every event"
_COMPILE = "the plan measures and chooses it; to fix it: settings: {compile: on}, or --set compile=on"
_STOP = "it is early_stop: 3, or {metric: loss, patience: 3}"
_MODEL = "it is model: mlp, a module, or mine:Net for class Net in mine.py"

_HABITS = {
    "it is lr: 1e-3": "learning_rate lr_rate eta base_lr max_lr lr_max",
    _EPOCHS: "epochs epoch nb_epoch n_epoch n_epochs num_epochs max_epochs num_train_epochs",
    _STEPS: "steps max_steps train_steps total_steps num_steps max_iters max_iter n_iter iterations",
    'the length is budget: "10 min"': "max_time time_limit",
    'budget: "10 steps" trains a little': "fast_dev_run limit_train_batches overfit_batches steps_per_epoch",
    _BATCH: "batch_size bs train_batch_size per_device_train_batch_size minibatch",
    "the plan chooses it": "per_device_eval_batch_size eval_batch_size val_batch_size",
    _SPLIT: "gradient_accumulation_steps accumulate_grad_batches grad_accum",
    _DEVICE: "accelerator use_cuda no_cuda use_cpu gpu",
    _DEVICES: "devices gpus num_gpus n_gpus strategy num_nodes ddp fsdp deepspeed",
    _PRECISION: "fp16 bf16 amp mixed_precision use_amp half_precision dtype",
    _LOSS: "loss loss_fn loss_func loss_function criterion",
    _SCHEDULE: "scheduler lr_scheduler lr_scheduler_type warmup warmup_steps warmup_ratio",
    _CLIP: "gradient_clip_val max_grad_norm clip_grad grad_clip clipnorm",
    _EVALUATE: "eval_strategy evaluation_strategy eval_steps check_val_every_n_epoch val_check_interval",
    _SAVE: "save_steps save_strategy save_every enable_checkpointing save_total_limit",
    _LOG: "logging_steps log_every_n_steps logger report_to log_dir logging_dir",
    _RUNS: "output_dir default_root_dir save_dir work_dir out_dir",
    _HELD: "validation_data validation_split val_split valid_pct eval_dataset val_dataset test_size "
    "eval_set holdout validation test valid",
    _DATA: "train_dataset train_dataloader train_dataloaders train_loader dataset dls dataloader",
    _RESUME: "resume_from_checkpoint ckpt_path resume checkpoint",
    _WORKERS: "num_workers dataloader_num_workers workers pin_memory persistent_workers",
    _CALLBACKS: "callbacks cbs",
    _COMPILE: "torch_compile jit_compile jit",
    _STOP: "early_stopping patience early_stopping_patience",
    _MODEL: "net network module arch architecture model_name learner learn",
    "inputs and labels are one pair, data=(x, y); a table is data=df with label='column'": "x y X Y X_train y_train x_train "
    "train_data training_data df dataframe",
    "categories are found by themselves; to name them: categorical=['job'], numeric=['age'] with data=df": "cat_names cat_cols "
    "cat_features cont_names cont_cols categorical_columns",
    "rows are prepared from what is in the data: a tokenizer is tokenizer: FILE under data": "tokenizer processing_class "
    "preprocessing_class procs",
    "a collate_fn is that of your DataLoader, or collate= with data=dataset": "data_collator collate_fn",
    "metrics go by name: metrics: [f1, auroc], or your function (output, y) -> number": "compute_metrics metric scoring "
    "eval_metric",
    "it has no such object: write its values as keys of the recipe, such as lr, batch and budget": "args training_args config "
    "trainer_args",
    "options of a model are written with its name: model: {mlp: {hidden: [64, 64], activation: relu}}": "hidden_layer_sizes "
    "activation hidden n_layers layers hidden_size dropout n_estimators max_depth",
    "it is best: f1, the metric that decides which weights are best": "monitor metric_for_best_model load_best_model_at_end",
    "weights of rows are a column: data: draw: COLUMN draws by them; weights of classes are class_weights": "sample_weight "
    "sample_weights weights",
    "the label belongs to data: {table: FILE, label: COLUMN}, or label='COLUMN' next to data=df": "label target "
    "label_column y_names",
    "it is optimizer: adamw": "optim opt opt_func optimizer_name",
    "it is weight_decay: 0.01": "wd weight_decay_rate l2",
    "it is seed: 0": "random_state random_seed manual_seed",
    "fo.run(quiet=True), or --quiet, shows nothing": "verbose progress_bar disable_tqdm enable_progress_bar",
    "settings: {activation_checkpointing: ...}, or let the plan choose it": "gradient_checkpointing",
    "it is ema: 0.999": "ema_decay use_ema",
    "rows are always shuffled by the seed; data: draw: balanced draws otherwise": "shuffle drop_last",
}
ANSWERS = {word: answer for answer, words in _HABITS.items() for word in words.split()}

_OF_A_RUN = {
    "fo.run trains; init_from=run.path starts from its weights": "fit train fit_one_cycle fine_tune",
    "run.result['metrics'] has the last scores, run.evaluate(data) those on other rows": "score metrics validate test",
    "run.plot() shows the curves, run.events() has their values": "history recorder logs log_history",
    "it is saved, in run.path; fo.export(run) writes a package, fo.export(run, to='onnx') one file": "save save_model to_onnx "
    "save_pretrained push_to_hub",
    "run.model(bare=True) is the trained module": "state_dict parameters eval forward module",
    "run.predict(df) has a column for each class; for arrays it is run.predict(x)['probabilities']": "predict_proba get_preds "
    "show_results",
}
OF_A_RUN = {word: answer for answer, words in _OF_A_RUN.items() for word in words.split()}
"""What trained objects of other libraries have, and what a run has instead."""

LOSSES = {
    "crossentropyloss": "classify", "cross_entropy": "classify", "crossentropy": "classify", "ce": "classify",
    "nllloss": "classify", "nll_loss": "classify", "categorical_crossentropy": "classify",
    "sparse_categorical_crossentropy": "classify", "crossentropylossflat": "classify", "labelsmoothingcrossentropy": "classify",
    "bcewithlogitsloss": "binary", "bceloss": "binary", "bce": "binary", "binary_crossentropy": "binary",
    "binary_cross_entropy": "binary", "binary_cross_entropy_with_logits": "binary", "bcewithlogitslossflat": "binary",
    "multilabelsoftmarginloss": "multilabel", "mseloss": "regress", "mse_loss": "regress", "mse": "regress",
    "mean_squared_error": "regress", "mselossflat": "regress", "classification": "classify", "regression": "regress",
    "multiclass": "classify", "causal_lm": "next_token", "language_modeling": "next_token", "lm": "next_token",
    "huberloss": "{regress: {error: huber}}", "huber_loss": "{regress: {error: huber}}",
    "smoothl1loss": "{regress: {error: huber}}",
    "smooth_l1_loss": "{regress: {error: huber}}", "huber": "{regress: {error: huber}}",
    "l1loss": "{regress: {error: mae}}", "l1_loss": "{regress: {error: mae}}", "mae": "{regress: {error: mae}}",
    "mean_absolute_error": "{regress: {error: mae}}",
}  # fmt: skip
"""Losses of torch, Keras and fastai by name, and the objective that has them."""


def answer_to(key: object, settings: Iterable[str]) -> str | None:
    """The answer to a key that no recipe has; None if it is no habit that is known. `settings` are the names of settings."""
    name = str(key).strip("-").replace("-", "_").lower()
    if name in settings:
        return f"it is a setting, chosen by the plan; to fix it: settings: {{{name}: ...}}, or --set {name}=..."
    return ANSWERS.get(name)


def objective_for(loss: str) -> str | None:
    """The objective that has this loss; None if no loss is called so."""
    return LOSSES.get(loss.lower().removeprefix("nn."))
