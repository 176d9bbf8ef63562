#!/usr/bin/env python3
"""plot.py - KL against time to the first token, one panel a set, as an SVG.

  plot.py rows.csv [more.csv ...] > quality.svg

Rows are those of `tessera-lab calibrate --csv`; a point is the mean of one setting over a set's questions.
Time is the share of the full prefill of the same questions, so that sets and machines compare.
Nothing but Python is needed, and nothing in the picture is fetched from elsewhere."""
import collections, csv, math, sys

# Told apart also by those who see few colours (Okabe and Ito, 2008).
COLORS = {"none": "#0072b2", "query": "#d55e00", "hkvd": "#009e73", "link": "#cc79a7"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 400, 300, 56, 16, 40, 46


def means(paths):
    """{set: {(selector, context, stored, ratio, bias): (questions, time, KL)}}"""
    rows = collections.defaultdict(lambda: collections.defaultdict(list))
    for path in paths:
        with open(path, newline="") as f:
            for r in csv.DictReader(f):
                if r["selector"] != "full" and r.get("stored", "plain") == "plain":
                    key = (r["selector"], r["context"], float(r["ratio"]), float(r["bias"]))
                    rows[r["set"]][key].append((float(r["full_s"]), float(r["blend_s"]), float(r["kl"])))
    out = {}
    for name, settings in rows.items():
        out[name] = {k: (len(v), sum(x[1] for x in v) / sum(x[0] for x in v), sum(x[2] for x in v) / len(v))
                     for k, v in settings.items()}
    return out


def nice(limit):
    """A step that cuts [0, limit] into 3 to 7 parts."""
    for step in (m * 10.0**e for e in range(-4, 2) for m in (1, 2, 5)):
        if limit / step <= 6:
            return step
    return limit


def panel(name, points, x0, y0):
    top = max(p[2] for p in points.values()) * 1.12
    low, high = math.log(min(p[1] for p in points.values()) / 1.3), math.log(max(p[1] for p in points.values()) * 3)
    x = lambda t: x0 + LEFT + (math.log(t) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
    y = lambda k: y0 + HEIGHT - BOTTOM - k / top * (HEIGHT - TOP - BOTTOM)
    n = max(p[0] for p in points.values())
    yield '<text x="%d" y="%d" class="t">%s, %d questions</text>' % (x0 + LEFT, y0 + 24, name, n)
    step, k = nice(top), 0.0
    while k <= top:
        yield '<path d="M%.1f %.1fH%.1f" class="g"/><text x="%.1f" y="%.1f" class="e">%g</text>' % (
            x0 + LEFT, y(k), x0 + WIDTH - RIGHT, x0 + LEFT - 6, y(k) + 4, round(k, 6))
        k += step
    for share in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
        if low <= math.log(share) <= high:
            yield '<path d="M%.1f %.1fV%.1f" class="g"/><text x="%.1f" y="%.1f" class="m">%g %%</text>' % (
                x(share), y0 + TOP, y0 + HEIGHT - BOTTOM, x(share), y0 + HEIGHT - BOTTOM + 16, 100 * share)
    labels = []  # (x, y, width) of those that stand
    for (selector, context, ratio, bias), (_, time, kl) in sorted(points.items(), key=lambda p: -p[1][2]):
        color, filled = COLORS.get(selector, "#000000"), bias != 0
        shape = '<circle cx="%.1f" cy="%.1f" r="5"' if context == "same" else '<rect x="%.1f" y="%.1f" width="9" height="9"'
        at = (x(time), y(kl)) if context == "same" else (x(time) - 4.5, y(kl) - 4.5)
        label = selector + (" %g %%" % (100 * ratio) if ratio else "") + (" bias %g" % bias if bias else "") + ("" if context == "same" else " pure")
        yield (shape + ' fill="%s" stroke="%s"><title>%s: KL %.3f at %.1f %% of the time</title>' + ("</circle>" if context == "same" else "</rect>")) % (
            *at, color if filled else "#ffffff", color, label, kl, 100 * time)
        lx, ly, wide = x(time) + 8, y(kl) + 4, 5.2 * len(label)
        while any(abs(ly - b) < 11 and lx < a + w and a < lx + wide for a, b, w in labels):
            ly += 2
        labels.append((lx, ly, wide))
        yield '<text x="%.1f" y="%.1f" class="s" fill="%s">%s</text>' % (lx, ly, color, label)
    yield '<text x="%.1f" y="%.1f" class="m">time to the first token, of a full prefill</text>' % (
        x0 + (LEFT + WIDTH - RIGHT) / 2, y0 + HEIGHT - 8)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 2
    sets = means(sys.argv[1:])
    order = [s for s in ("musique", "nq", "multi_news", "kv") if s in sets] + sorted(set(sets) - {"musique", "nq", "multi_news", "kv"})
    width, height = 2 * WIDTH, HEIGHT * -(-len(order) // 2) + 24
    print('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">' % (width, height, width, height))
    print("<style>.g{stroke:#ddd;fill:none}.t{font-size:14px;font-weight:bold}.e{text-anchor:end}.m{text-anchor:middle}.s{font-size:10px}</style>")
    print('<rect width="%d" height="%d" fill="#ffffff"/>' % (width, height))
    print('<text x="%d" y="16">KL(prefill || blend) at the first answer token; filled: with the context bias</text>' % LEFT)
    for i, name in enumerate(order):
        for line in panel(name, sets[name], i % 2 * WIDTH, 20 + i // 2 * HEIGHT):
            print(line)
    print("</svg>")
    return 0


sys.exit(main())
