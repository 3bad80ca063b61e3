"""Requirements on a profile (`debug.profile`), so that viewers can load it and readers can trust it. As a program, checks a file.

usage: profiles.py FILE --ranks N --steps FIRST LAST [--gpu] [--kernels]
"""
import argparse
import collections
import json
import math
import sys

LAYERS = {"gradient", "products", "norms", "head and loss", "update"}
ROUNDING = 0.002  # microseconds: times are printed to a nanosecond


def span(event):
    return event["ts"], event["ts"] + event["dur"]


def nesting(events, where):
    """Regions of one row lie inside each other or apart."""
    open_ = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        begin, end = span(event)
        while open_ and span(open_[-1])[1] <= begin + ROUNDING:
            open_.pop()
        if open_ and end > span(open_[-1])[1] + ROUNDING:
            yield f"{where}: {event['name']} at {begin} ends behind {open_[-1]['name']}, in which it begins"
        open_.append(event)


def whole_events(events, ranks):
    for event in events:
        named = isinstance(event.get("name"), str) and event["name"].strip()
        timed = all(isinstance(event.get(key), (int, float)) and math.isfinite(event[key]) and event[key] >= 0 for key in ("ts", "dur"))
        if not named or not timed or event.get("pid") not in range(ranks) or event.get("cat") not in ("region", "collective", "kernel"):
            yield f"no name, time, rank or kind: {event}"


def steps_of(row, steps, where):
    """Every step once, in order, with the regions of a training step inside."""
    found = sorted((e for e in row if e["name"].startswith("step ")), key=lambda e: e["ts"])
    want = [f"step {n}" for n in range(steps[0], steps[1] + 1)]
    if [e["name"] for e in found] != want:
        yield f"{where}: {[e['name'] for e in found]}, not {want}"
    for step in found:
        begin, end = span(step)
        inside = [e for e in row if e is not step and e["args"].get("step") == step["args"].get("step")]
        if missing := LAYERS - {e["name"] for e in inside}:
            yield f"{where}: {step['name']} lacks {sorted(missing)}"
        for e in inside:
            if e["ts"] < begin - ROUNDING or span(e)[1] > end + ROUNDING:
                yield f"{where}: {e['name']} at {e['ts']} is not inside its {step['name']}"


def problems(trace, ranks, steps, gpu=False, kernels=False):
    """Problems of a trace, a line each."""
    found, rows, events = [], collections.defaultdict(list), trace.get("traceEvents", [])
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    if processes != {rank: f"rank {rank}" for rank in range(ranks)}:
        found.append(f"processes: {processes}")
    passages = [e for e in events if e["ph"] == "X"]
    found += whole_events(passages, ranks)
    if found:
        return found
    for event in passages:
        if (event["pid"], event["tid"]) not in titles:
            found.append(f"a row without a name: {event}")
        rows[event["pid"], titles.get((event["pid"], event["tid"]), "no row")].append(event)
    for (rank, title), row in rows.items():
        if not title.endswith("kernels"):
            found += nesting(row, f"rank {rank}, {title}")
    for rank in range(ranks):
        for title in ["host"] + ["compute: regions"] * gpu:
            found += steps_of(rows[rank, title], steps, f"rank {rank}, {title}")
        carried = [e for (of, title), row in rows.items() if of == rank and title != "host" for e in row if e["cat"] == "collective"]
        if ranks > 1:  # an evaluation between two steps gathers the weights of the second
            reduced = {e["args"].get("step") for e in carried if e["name"] == "all_to_all gradients" and e["args"]["bytes"] > 0}
            if missing := set(range(steps[0], steps[1] + 1)) - reduced:
                found.append(f"rank {rank}: steps {sorted(missing)} have no all_to_all of gradients with bytes")
            if not any(e["name"] == "all_gather weights" and e["args"]["bytes"] > 0 for e in carried):
                found.append(f"rank {rank}: no all_gather of weights with bytes")
        if kernels:
            ran = rows[rank, "compute: kernels"]
            if len({e["name"] for e in ran}) < 10:
                found.append(f"rank {rank}: {len(ran)} kernels of {len({e['name'] for e in ran})} names")
            if ranks > 1 and not rows[rank, "communication: kernels"]:
                found.append(f"rank {rank}: no kernels of collectives")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, nargs=2, required=True)
    parser.add_argument("--gpu", action="store_true", help="regions as the device spent them, too")
    parser.add_argument("--kernels", action="store_true", help="kernels, too")
    options = parser.parse_args()
    with open(options.file, encoding="utf-8") as file:
        trace = json.load(file)
    found = problems(trace, options.ranks, options.steps, options.gpu, options.kernels)
    print("\n".join(found[:20]) or f"{options.file}: {len(trace['traceEvents'])} events, sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
