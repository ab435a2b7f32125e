"""Measures accuracy, or the error of numbers, over time: one longer run for each way to synchronise, with the loss of
every step."""

from __future__ import annotations

import math

import jobs
import machine
import measure
import results as schema

LOSS_POINTS_MAX = 300


def thinned(losses: list[schema.Loss], points: int = LOSS_POINTS_MAX) -> list[schema.Loss]:
    """Averages neighbours so that at most `points` remain. Each mean has the step and time of its last loss."""
    width = max(1, math.ceil(len(losses) / points))
    found: list[schema.Loss] = []
    for begin in range(0, len(losses), width):
        part = losses[begin:begin + width]
        found.append({"step": part[-1]["step"], "seconds": part[-1]["seconds"],
                      "loss": sum(loss["loss"] for loss in part) / len(part)})
    return found


def epochs_of(record: measure.Record) -> list[schema.TrainingEpoch]:
    """The epochs of a run record, each with the training time from the start to its end."""
    are_numbers = record.get("test", {}).get("loss") == "mse"
    seconds = 0.0
    found: list[schema.TrainingEpoch] = []
    for epoch in record["epochs"]:
        seconds += epoch["seconds"]
        found.append({"epoch": epoch["epoch"], "train_loss": epoch["train_loss"],
                      "test_accuracy": epoch["test_accuracy"], "seconds": seconds})
        if are_numbers:
            found[-1]["test_rmse"] = math.sqrt(float(epoch["test_loss"]))  # the worker writes NaN as text
    return found


def set_targets(entries: list[schema.Training], target: float) -> None:
    """Sets each entry's target: `target`, or if 0 the accuracy that all entries of a model reach, rounded down to half
    a percent. For a model of numbers it is the RMSE that all entries reach, rounded up to three digits."""
    for model in {entry["model"] for entry in entries}:
        of_model = [entry for entry in entries if entry["model"] == model]
        if all("test_rmse" in epoch for entry in of_model for epoch in entry["epochs"]):
            _set_target_rmse(of_model)
            continue
        reached = min(max(epoch["test_accuracy"] for epoch in entry["epochs"]) for entry in of_model)
        for entry in of_model:
            entry["target_accuracy"] = target or math.floor(reached * 200) / 200
            entry["seconds_to_target"] = next((epoch["seconds"] for epoch in entry["epochs"]
                                               if epoch["test_accuracy"] >= entry["target_accuracy"]), None)


def _rounded_up(value: float) -> float:
    """To three significant digits; 0 and what is not finite stay."""
    if not 0 < value < math.inf:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step) * step:.3g}")


def _set_target_rmse(entries: list[schema.Training]) -> None:
    # A training that diverges has an RMSE that is no number.
    target = _rounded_up(max(min((epoch["test_rmse"] for epoch in entry["epochs"] if math.isfinite(epoch["test_rmse"])),
                                 default=math.inf) for entry in entries))
    for entry in entries:
        entry["target_rmse"] = target
        entry["seconds_to_target"] = next((epoch["seconds"] for epoch in entry["epochs"]
                                           if epoch["test_rmse"] <= target), None)


def run(job: jobs.Job, epochs: int, gpus: machine.Gpus) -> schema.Training:
    """Trains, and returns an entry of `training` without a target."""
    record, _ = measure.run_job(job, 0, gpus, [f"--epochs={epochs}", "--record_losses"])
    configuration = job.configuration
    entry: schema.Training = {
        "configuration": configuration["id"], "sync": configuration["sync"], "model": configuration["model"],
        "workers": configuration["workers"], "epochs": epochs_of(record), "target_accuracy": 0.0,
        "seconds_to_target": None, "losses": thinned(record["losses"])}
    if "test" in record:
        entry["test"] = record["test"]
    return entry
