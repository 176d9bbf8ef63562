/* plot.c - a picture of hit rate against size: one line a policy, sizes on a scale of powers of
 * two, a grid, and names at the ends of the lines instead of a legend to look up. SVG, plain text
 * that browsers and editors show; nothing in it is fetched from elsewhere. */
#include "lab/replay.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { WIDTH = 760, HEIGHT = 440, LEFT = 64, RIGHT = 110, TOP = 72, BOTTOM = 62 };
#define LABEL_WIDTH 58.0 /* room for a size below the axis */
#define NAME_HEIGHT 17.0

/* Told apart also by those who see few colours (Okabe and Ito, 2008). */
static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                     "#e69f00", "#56b4e9", "#000000", "#8a8a00"};

/* The plot and its scales. */
struct canvas {
    FILE *to;
    const struct tsri_plot *p;
    size_t order[TSRI_PLOT_SIZES_MAX]; /* sizes, ascending */
    double x_min, x_max;               /* log2 of sizes */
    double y_max, y_step;              /* rates */
};

static double x_of(const struct canvas *c, size_t i)
{
    double span = c->x_max - c->x_min, x = log2((double)c->p->sizes[c->order[i]]) - c->x_min;
    double share = span > 0 ? x / span : 0.5;
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct canvas *c, double rate)
{
    return HEIGHT - BOTTOM - rate / c->y_max * (HEIGHT - TOP - BOTTOM);
}

static double rate_of(const struct canvas *c, size_t line, size_t i)
{
    return c->p->lines[line].rates[c->order[i]];
}

static void text(struct canvas *c, const char *s)
{
    for (; *s; s++) {
        if (*s == '<' || *s == '>' || *s == '&')
            fprintf(c->to, "&#%d;", *s);
        else if ((unsigned char)*s >= 0x20)
            fputc(*s, c->to);
    }
}

static void open_text(struct canvas *c, double x, double y, const char *more)
{
    fprintf(c->to, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, more);
}

/* ---- scales ---- */

static void scale(struct canvas *c)
{
    double most = 0;
    for (size_t i = 0; i < c->p->n_sizes; i++) {
        size_t at = i;
        for (; at > 0 && c->p->sizes[c->order[at - 1]] > c->p->sizes[i]; at--)
            c->order[at] = c->order[at - 1];
        c->order[at] = i;
        for (size_t l = 0; l < c->p->n_lines; l++)
            most = fmax(most, c->p->lines[l].rates[i]);
    }
    c->x_min = log2((double)c->p->sizes[c->order[0]]);
    c->x_max = log2((double)c->p->sizes[c->order[c->p->n_sizes - 1]]);
    /* Three to six lines of the grid, at round percents. */
    static const double steps[] = {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2};
    size_t s = 0;
    while (s + 1 < TSRI_COUNT(steps) && most > 5 * steps[s])
        s++;
    c->y_step = steps[s];
    c->y_max = fmax(ceil(most / c->y_step - 1e-9), 1) * c->y_step;
}

/* ---- parts ---- */

static void draw_head(struct canvas *c)
{
    fprintf(c->to,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"system-ui, Helvetica, Arial, sans-serif\" "
            "font-size=\"13\" fill=\"#333\">\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    open_text(c, LEFT, 30, " font-size=\"17\" font-weight=\"600\" fill=\"#111\"");
    fputs("Tokens reused: ", c->to);
    text(c, c->p->title);
    fputs("</text>\n", c->to);
    open_text(c, LEFT, 50, " fill=\"#666\"");
    text(c, c->p->note);
    fputs("</text>\n", c->to);
}

static void draw_grid(struct canvas *c)
{
    int n = (int)lround(c->y_max / c->y_step), decimals = c->y_step < 0.01;
    for (int i = 0; i <= n; i++) {
        double y = y_of(c, i * c->y_step);
        fprintf(c->to, "<path stroke=\"%s\" d=\"M%d %.1fH%d\"/>\n", i ? "#e3e3e3" : "#888", LEFT, y,
                WIDTH - RIGHT);
        open_text(c, LEFT - 10, y + 4.5, " text-anchor=\"end\"");
        fprintf(c->to, "%.*f %%</text>\n", decimals, i * c->y_step * 100);
    }
    double last = -LABEL_WIDTH;
    for (size_t i = 0; i < c->p->n_sizes; i++) {
        double x = x_of(c, i);
        char size[32];
        if (x - last < LABEL_WIDTH) continue;
        last = x;
        fprintf(c->to, "<path stroke=\"#888\" d=\"M%.1f %dv5\"/>\n", x, HEIGHT - BOTTOM);
        open_text(c, x, HEIGHT - BOTTOM + 20, " text-anchor=\"middle\"");
        text(c, tsri_cli_size(c->p->sizes[c->order[i]], size));
        fputs("</text>\n", c->to);
    }
    open_text(c, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 18,
              " text-anchor=\"middle\" fill=\"#666\"");
    fputs("host memory, at 64 bytes per token</text>\n", c->to);
}

static void draw_line(struct canvas *c, size_t l)
{
    const char *color = colors[l % TSRI_COUNT(colors)];
    fprintf(c->to,
            "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2.2\" "
            "stroke-linejoin=\"round\" d=\"",
            color);
    for (size_t i = 0; i < c->p->n_sizes; i++)
        fprintf(c->to, "%c%.1f %.1f", i ? 'L' : 'M', x_of(c, i), y_of(c, rate_of(c, l, i)));
    fputs("\"/>\n", c->to);
    for (size_t i = 0; i < c->p->n_sizes; i++)
        fprintf(c->to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.4\" fill=\"%s\"/>\n", x_of(c, i),
                y_of(c, rate_of(c, l, i)), color);
}

/* At the lines' ends, from top to bottom, moved apart where they would touch. */
static void draw_names(struct canvas *c)
{
    size_t lines[TSRI_PLOT_LINES_MAX], last = c->p->n_sizes - 1;
    double y[TSRI_PLOT_LINES_MAX], floor_y = HEIGHT - BOTTOM;
    for (size_t l = 0; l < c->p->n_lines; l++) {
        size_t at = l;
        for (; at > 0 && rate_of(c, lines[at - 1], last) < rate_of(c, l, last); at--)
            lines[at] = lines[at - 1];
        lines[at] = l;
    }
    for (size_t i = 0; i < c->p->n_lines; i++) {
        y[i] = y_of(c, rate_of(c, lines[i], last));
        if (i && y[i] < y[i - 1] + NAME_HEIGHT) y[i] = y[i - 1] + NAME_HEIGHT;
    }
    for (size_t i = c->p->n_lines; i-- > 0;) {
        if (y[i] > floor_y) y[i] = floor_y;
        floor_y = y[i] - NAME_HEIGHT;
        char more[64];
        snprintf(more, sizeof more, " font-weight=\"600\" fill=\"%s\"",
                 colors[lines[i] % TSRI_COUNT(colors)]);
        open_text(c, x_of(c, last) + 12, y[i] + 4.5, more);
        text(c, c->p->lines[lines[i]].name);
        fputs("</text>\n", c->to);
    }
}

int tsri_plot_write(const struct tsri_plot *p, const char *path)
{
    TSR_ASSERT(p->n_sizes > 0 && p->n_sizes <= TSRI_PLOT_SIZES_MAX);
    TSR_ASSERT(p->n_lines > 0 && p->n_lines <= TSRI_PLOT_LINES_MAX);
    struct canvas c = {.to = fopen(path, "we"), .p = p};
    if (!c.to) return tsri_fail(TSR_EIO, "%s: %s", path, strerror(errno));
    scale(&c);
    draw_head(&c);
    draw_grid(&c);
    /* The first line is drawn last, on top. */
    for (size_t l = p->n_lines; l-- > 0;)
        draw_line(&c, l);
    draw_names(&c);
    fputs("</svg>\n", c.to);
    int bad = ferror(c.to);
    if (fclose(c.to) != 0 || bad) return tsri_fail(TSR_EIO, "%s: cannot write", path);
    return 0;
}
