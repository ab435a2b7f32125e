"""Which plots the page has: families of panels, with captions that say how to read them and what is to be seen."""

from . import labels, plots, svg, units, view


def _sync_legend(names):
    return [{"name": "gloo (exchange of DDP)" if name == "gloo" else name, "color": svg.sync_color_name(name),
             "mark": labels.marker(name)[1]} for name in names]


def _family(identifier, title, caption, legend, panels, arrangement="rows"):
    """`arrangement`: "pairs" keeps two panels side by side that show two sides of one thing."""
    return {"id": identifier, "title": title, "caption": caption, "legend": legend, "panels": panels,
            "arrangement": arrangement}


def _panels(identifier, titled, draw):
    """[(title, what to draw)] drawn; a plot that has nothing to show is left out."""
    drawn = [{"title": title, "svg": draw(f"{identifier}{index}", what)}
             for index, (title, what) in enumerate(titled)]
    return [panel for panel in drawn if panel["svg"]]


def _row_panels(families):
    """One panel a model, its rows over all numbers of workers."""
    return [(labels.group(*key), [row for group in members for row in group["rows"]]) for key, members in families]


def _rows(groups):
    return [row for group in groups for row in group["rows"]]


def _throughput(groups, families, legend, calls_winner):
    caption = ("Longer is better. The bar is the median over the repeats, the whisker spans the slowest and the "
               "fastest run: where whiskers overlap, the order means nothing. 2w+1s is 2 workers and 1 server.")
    best = [(row["samples_per_second"]["median"], group["title"], row) for group in groups for row in group["rows"]
            if row.get("best")]
    if best and calls_winner:
        rate, title, row = max(best, key=lambda entry: entry[0])
        caption += f" The longest bar is {row['label']} with {units.count(rate)} samples/s ({title})."
    return _family("throughput", "Samples per second", caption, legend,
                   _panels("throughput", _row_panels(families), plots.throughput))


def _breakdown(groups, families):
    caption = ("Shorter is better. Blue is computing, which every sync must do; red is exposed exchange: time in which "
               "the worker had nothing else to do. Rank 0, mean over all measured steps.")
    exposed = []
    for row in _rows(groups):
        parts = view.breakdown(row["configuration"])
        total = sum(parts.values())
        if total and parts.get("exposed_exchange"):
            exposed.append((parts["exposed_exchange"] / total, parts["exposed_exchange"], total, row))
    if exposed:
        share, value, total, row = max(exposed, key=lambda entry: entry[0])
        caption += (f" The largest share is waited for by {row['label']} on {row['configuration']['model']} "
                    f"({labels.section(row['configuration']['section'])}): {units.significant(value)} of "
                    f"{units.significant(total)} ms, {units.percent(share)}.")
    legend = [{"name": labels.PART_NAMES[part], "color": "part-" + part, "mark": ""} for part in labels.PARTS]
    return _family("breakdown", "Where a step goes", caption, legend,
                   _panels("breakdown", _row_panels(families), plots.breakdown))


def _scaling(groups, families):
    legend = []
    caption = "The dotted line is the ideal: twice the workers, twice the samples/s. The closer to it, the better."
    rows = [(row["efficiency"], row, group) for group in groups for row in group["rows"]
            if row.get("efficiency") is not None and row["configuration"]["workers"] > 1]
    if rows:
        (worst, bad, bad_group), (best, good, good_group) = (choose(rows, key=lambda entry: entry[0])
                                                             for choose in (min, max))
        legend = _sync_legend(sorted({row["sync"] for _, row, _ in rows}, key=labels.sync_order))
        caption += f" Highest: {good['label']} with {units.percent(best)} of it ({good_group['title']})."
        if worst < best:
            caption += f" Lowest: {bad['label']} with {units.percent(worst)} ({bad_group['title']})."
        if best > 1.1:
            caption += " More than 100 % says that the runs of one worker were held up, or that caches grew."
    panels = _panels("scaling", [(labels.group(*key), members) for key, members in families], plots.scaling)
    return _family("scaling", "Scaling against ideal", caption, legend, panels)


def _training(results, calls_winner):
    runs = [one for one in view.training(results) if one.get("epochs")]
    caption = ("The same number of epochs for all: a line that ends farther left trained as much in less time. Left of "
               "the target line's crossing is better.")
    reached = [one for one in runs if one.get("seconds_to_target") is not None]
    if reached and calls_winner:
        first = min(reached, key=lambda one: one["seconds_to_target"])
        caption += (f" First at {units.percent(first['target_accuracy'], 1)} is {first['sync']} on {first['model']}, "
                    f"after {units.seconds(first['seconds_to_target'])}.")
    titled = []
    for model, count in sorted({(one["model"], one["workers"]) for one in runs}):
        titled.append((f"{model}, {labels.workers(count)}",
                       [one for one in runs if (one["model"], one["workers"]) == (model, count)]))
    panels = []
    for place, (title, members) in enumerate(titled):
        panels += _panels(f"loss{place}-", [(f"Loss: {title}", members)], plots.loss)
        panels += _panels(f"accuracy{place}-", [(f"Accuracy: {title}", members)], plots.accuracy)
    names = sorted({one["sync"] for one in runs}, key=labels.sync_order)
    return _family("training", "Loss and accuracy against time", caption, _sync_legend(names), panels, "pairs")


def _exchange(results):
    tables = view.exchange_rows(results)
    caption = ("The exchange alone, nothing to hide behind. Latency: lower is better, the left end is what a message "
               "costs at all. Bandwidth: higher is better, the right end is what the path carries.")
    panels = []
    for place, table in enumerate(tables):
        small, large = (choose(one["bytes"] for one in table["times"]) for choose in (min, max))
        quick = min((one for one in table["times"] if one["bytes"] == small), key=lambda one: one["latency_us"])
        wide = max((one for one in table["times"] if one["bytes"] == large), key=lambda one: one["bus_gb_per_s"])
        caption += (f" {table['title'].capitalize()}: {quick['sync']} is quickest at {units.data(small)} "
                    f"({units.significant(quick['latency_us'])} µs), {wide['sync']} carries most at "
                    f"{units.data(large)} ({units.significant(wide['bus_gb_per_s'])} GB/s).")
        panels += _panels(f"latency{place}-", [(f"Latency: {table['title']}", table["times"])], plots.exchange_latency)
        panels += _panels(f"bandwidth{place}-", [(f"Bandwidth: {table['title']}", table["times"])],
                          plots.exchange_bandwidth)
    names = sorted({sync for table in tables for sync in table["columns"]}, key=labels.sync_order)
    return _family("exchange", "The exchange alone", caption, _sync_legend(names), panels, "pairs")


def _cpu(groups, families, legend):
    caption = ("Filled: workers, hatched: servers, one segment a process. 100 % is one core kept busy, by spinning in "
               "wait too.")
    servers = [(value, name, row) for row in _rows(groups) for name, _, value in view.processes(row["configuration"])
               if name.startswith("server") and value is not None]
    if servers:
        value, name, row = max(servers, key=lambda entry: entry[0])
        caption += f" The busiest server, {name} of {row['label']}, uses {value:.0f} % of a core."
    panels = _panels("cpu", [(title, rows) for title, rows in _row_panels(families)
                             if any(view.processes(row["configuration"]) for row in rows)], plots.cpu)
    return _family("cpu", "CPU use", caption, legend, panels)


def _gpu(families, legend):
    titled = [(title, [row for row in rows if row["gpu"]]) for title, rows in _row_panels(families)]
    return _family("gpu", "GPU use and memory", "Mean use while the job ran, as the driver counts it, and the largest "
                   "memory held. Low use means that the GPU waits for data, launches or the exchange.", legend,
                   _panels("gpu", [(title, rows) for title, rows in titled if rows], plots.gpu))


def draw(results, groups, calls_winner):
    """Every family that has a panel, in the order of the page. Without `calls_winner` no caption names the first."""
    families = view.by_model(groups)
    names = sorted({row["sync"] for row in _rows(groups)}, key=labels.sync_order)
    legend = _sync_legend(names)
    with svg.style():
        made = [_throughput(groups, families, legend, calls_winner), _breakdown(groups, families),
                _scaling(groups, families), _training(results, calls_winner), _exchange(results),
                _cpu(groups, families, legend), _gpu(families, legend)]
    return [family for family in made if family["panels"]]
