#!/usr/bin/env python3
"""Draws a trace as SVG: a row each for the link, the device and the CPU, coloured by what they work on.

draw_timeline.py TRACE.json > timeline.svg     (TRACE.json from bench/trace_step, or any Chrome trace with "X" events)
"""

import json
import sys
from html import escape

ROWS = ["link", "device", "cpu"]
COLOURS = {"attention": "#4c78a8", "ffn": "#f58518", "router": "#72b7b2", "experts": "#e45756", "expert": "#e45756", "output": "#54a24b", "embedding": "#9d755d", "rows": "#bab0ac"}
LEFT, TOP, WIDTH, ROW, GAP = 70, 34, 900, 34, 12


def colour(event):
    return COLOURS.get(event["name"].split()[-1], "#888888")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file)["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    events = [{**e, "tid": names.get(e["tid"], str(e["tid"]))} for e in trace if e.get("ph") == "X"]
    end = max(e["ts"] + e["dur"] for e in events)
    rows = ROWS + sorted({e["tid"] for e in events} - set(ROWS))
    height = TOP + len(rows) * (ROW + GAP) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 20} {height}" font-family="sans-serif" font-size="13">',
           '<rect width="100%" height="100%" fill="white"/>']
    for i, row in enumerate(rows):
        y = TOP + i * (ROW + GAP)
        out.append(f'<text x="{LEFT - 10}" y="{y + ROW * 0.65:.0f}" text-anchor="end">{escape(row)}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{ROW}" fill="#f4f4f4"/>')
    for e in events:
        y = TOP + rows.index(e["tid"]) * (ROW + GAP)
        x, width = LEFT + e["ts"] / end * WIDTH, max(e["dur"] / end * WIDTH, 0.4)
        title = f'{e["name"]}, layer {e.get("args", {}).get("layer", "-")}: {e["dur"]:.0f} us'
        out.append(f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{colour(e)}" stroke="white" stroke-width="0.3"><title>{escape(title)}</title></rect>')
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if end / 1000 / s <= 12 or s == 1000)
    for i in range(int(end / 1000 / step) + 1):
        x = LEFT + i * step * 1000 / end * WIDTH
        out.append(f'<text x="{x:.1f}" y="{height - 12}" text-anchor="middle" fill="#666666">{i * step:g}{" ms" if i == 0 else ""}</text>')
    x = LEFT
    for name in sorted({e["name"].split()[-1] for e in events} - {"rows"}) + ["rows"]:
        out.append(f'<rect x="{x}" y="9" width="12" height="12" fill="{COLOURS.get(name, "#888888")}"/><text x="{x + 17}" y="20">{escape(name)}</text>')
        x += 35 + 8 * len(name)
    print("\n".join([*out, "</svg>"]))


if __name__ == "__main__":
    main()
