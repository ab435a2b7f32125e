"""Accuracy against time: one longer run of each way to synchronise, with every step's loss."""

import math

import measure

LOSS_POINTS_MAX = 300


def thinned(losses, points=LOSS_POINTS_MAX):
    """Means of as many neighbours as leave `points` at most, at the step and second of the last of them."""
    width = max(1, math.ceil(len(losses) / points))
    found = []
    for begin in range(0, len(losses), width):
        part = losses[begin:begin + width]
        found.append({"step": part[-1]["step"], "seconds": part[-1]["seconds"],
                      "loss": sum(loss["loss"] for loss in part) / len(part)})
    return found


def epochs_of(record):
    """The epochs of a run record with the training seconds added up."""
    seconds, found = 0.0, []
    for epoch in record["epochs"]:
        seconds += epoch["seconds"]
        found.append({"epoch": epoch["epoch"], "train_loss": epoch["train_loss"],
                      "test_accuracy": epoch["test_accuracy"], "seconds": seconds})
    return found


def set_targets(entries, target):
    """The accuracy that all entries of a model reach, rounded down to half a percent, unless `target` is given."""
    for model in {entry["model"] for entry in entries}:
        of_model = [entry for entry in entries if entry["model"] == model]
        reached = min(max(epoch["test_accuracy"] for epoch in entry["epochs"]) for entry in of_model)
        for entry in of_model:
            entry["target_accuracy"] = target or math.floor(reached * 200) / 200
            entry["seconds_to_target"] = next((epoch["seconds"] for epoch in entry["epochs"]
                                               if epoch["test_accuracy"] >= entry["target_accuracy"]), None)


def run(job, epochs, gpus):
    """An entry of `training`, without target."""
    record, _ = measure.run_job(job, 0, gpus, [f"--epochs={epochs}", "--record_losses"])
    configuration = job.configuration
    return {"configuration": configuration["id"], "sync": configuration["sync"], "model": configuration["model"],
            "workers": configuration["workers"], "epochs": epochs_of(record), "target_accuracy": 0.0,
            "seconds_to_target": None, "losses": thinned(record["losses"])}
