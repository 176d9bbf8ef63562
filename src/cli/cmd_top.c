/* cmd_top.c - `tessera top`: asks a server again and again and shows what changed. In a terminal it
 * has the whole screen and its keys, and gives both back however it ends; elsewhere it prints one
 * report after the other. */
#include "cli/top.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define INTERVAL_S 2.0
#define CTRL_C 3

struct watching {
    struct tsri_cli *cli;
    struct tsri_top_source source;
    struct tsri_top_sample samples[2]; /* the newest is at `newest` */
    int newest;
    uint32_t n_samples; /* of one life of the server: 0, 1, 2 */
    char problem[512];  /* "": none */
    double interval_s;
};

/* Takes a sample; 0, or below 0 with w->problem. */
static int take(struct watching *w)
{
    struct tsri_top_sample *next = &w->samples[!w->newest];
    int e = tsri_top_source_next(&w->source, next);
    if (e < 0) {
        snprintf(w->problem, sizeof w->problem, "%s", tsr_errmsg());
        return e;
    }
    w->problem[0] = 0;
    bool goes_on = w->n_samples && tsri_top_same_life(&w->samples[w->newest], next);
    w->n_samples = goes_on ? 2 : 1;
    w->newest = !w->newest;
    return 0;
}

static struct tsri_top_report report_of(const struct watching *w)
{
    return (struct tsri_top_report){.where = w->source.where,
                                    .problem = w->problem[0] ? w->problem : NULL,
                                    .before = w->n_samples == 2 ? &w->samples[!w->newest] : NULL,
                                    .now = w->n_samples ? &w->samples[w->newest] : NULL};
}

/* ---- one report after the other ---- */

static void print_report(const struct watching *w)
{
    struct tsri_top_report r = report_of(w);
    if (w->cli->json)
        tsri_top_report_json(&r, stdout);
    else
        tsri_top_report_print(&r, w->cli, stdout, 0, 0, false);
    fflush(stdout);
}

static void sleep_s(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
}

static int print_once(struct watching *w)
{
    if (take(w) < 0) return tsri_cli_fail("%s", w->problem);
    sleep_s(w->interval_s); /* rates need two */
    if (take(w) < 0) return tsri_cli_fail("%s", w->problem);
    print_report(w);
    return 0;
}

static int print_all(struct watching *w)
{
    for (bool first = true;; first = false) {
        (void)!take(w); /* the report says so */
        if (!w->cli->json && !first) putchar('\n');
        print_report(w);
        if (ferror(stdout)) return CLI_FAILED;
        sleep_s(w->interval_s);
    }
}

/* ---- the terminal ---- */

struct screen_state {
    struct termios before;
    bool has_keys;
    int signals; /* a descriptor */
    sigset_t mask_before;
};

static void enter(struct screen_state *t)
{
    if (t->has_keys) {
        struct termios raw = t->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO); /* ISIG stays: Ctrl-C and Ctrl-Z are signals */
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    fputs("\033[?1049h\033[?25l\033[2J", stdout); /* another screen, without a cursor */
    fflush(stdout);
}

static void leave(const struct screen_state *t)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (t->has_keys) tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static int screen_open(struct screen_state *t)
{
    static const int all[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGTSTP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < TSRI_COUNT(all); i++)
        sigaddset(&set, all[i]);
    sigprocmask(SIG_BLOCK, &set, &t->mask_before);
    t->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (t->signals < 0) return tsri_cli_fail("signalfd: %s", strerror(errno));
    t->has_keys = tcgetattr(STDIN_FILENO, &t->before) == 0;
    enter(t);
    return 0;
}

static void screen_close(struct screen_state *t)
{
    leave(t);
    close(t->signals);
    sigprocmask(SIG_SETMASK, &t->mask_before, NULL);
}

static void draw(const struct watching *w)
{
    struct winsize size = {0};
    struct tsri_top_report r = report_of(w);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0)
        size = (struct winsize){.ws_row = 24, .ws_col = 80};
    tsri_top_report_print(&r, w->cli, stdout, size.ws_row, size.ws_col, true);
}

enum top_wish { WISH_NOTHING, WISH_ASK, WISH_DRAW, WISH_QUIT };

static enum top_wish read_keys(void)
{
    char keys[64];
    enum top_wish wish = WISH_NOTHING;
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);
    if (n < 0) return errno == EINTR || errno == EAGAIN ? WISH_NOTHING : WISH_QUIT;
    if (n == 0) return WISH_QUIT; /* poll said there is something: it is the end */
    for (ssize_t i = 0; i < n; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q' || keys[i] == CTRL_C) return WISH_QUIT;
        if (keys[i] == ' ') wish = WISH_ASK;
    }
    return wish;
}

static enum top_wish read_signal(struct screen_state *t)
{
    struct signalfd_siginfo info;
    if (read(t->signals, &info, sizeof info) != (ssize_t)sizeof info) return WISH_NOTHING;
    if (info.ssi_signo == SIGWINCH) return WISH_DRAW;
    if (info.ssi_signo != SIGTSTP) return WISH_QUIT;
    leave(t);
    raise(SIGSTOP); /* comes back with SIGCONT */
    enter(t);
    return WISH_DRAW;
}

/* Until something is wanted, or the time has come (WISH_ASK). */
static enum top_wish await(struct screen_state *t, uint64_t until_ns)
{
    enum top_wish wish = WISH_NOTHING;
    while (wish == WISH_NOTHING) {
        uint64_t now = tsri_now_ns();
        if (now >= until_ns) return WISH_ASK;
        struct pollfd p[2] = {{.fd = t->signals, .events = POLLIN},
                              {.fd = t->has_keys ? STDIN_FILENO : -1, .events = POLLIN}};
        if (poll(p, 2, (int)((until_ns - now) / 1000000 + 1)) <= 0) continue;
        if (p[0].revents) wish = read_signal(t);
        if (p[1].revents && wish == WISH_NOTHING) wish = read_keys();
    }
    return wish;
}

static int watch_live(struct watching *w)
{
    struct screen_state t = {0};
    enum top_wish wish = WISH_ASK;
    int status = screen_open(&t);
    if (status) return status;
    draw(w); /* something at once: a server that is away takes its time */
    for (uint64_t next_ns = 0; wish != WISH_QUIT && !ferror(stdout);) {
        if (wish == WISH_ASK) {
            (void)!take(w); /* the report says so */
            next_ns = tsri_now_ns() + (uint64_t)(w->interval_s * 1e9);
        }
        draw(w);
        wish = await(&t, next_ns);
    }
    screen_close(&t);
    return 0;
}

static bool is_live(const struct watching *w)
{
    const char *term = getenv("TERM");
    return !w->cli->json && isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

int tsri_cmd_top(struct tsri_cli *cli)
{
    int status = tsri_cli_want_args(cli, 0, 1);
    double interval = INTERVAL_S;
    if (!status) status = tsri_cli_flag_number(cli, "interval", 0.1, 3600, &interval);
    if (status) return status;
    struct watching *w = tsri_alloc(1, sizeof *w);
    if (!w) return tsri_cli_failed();
    w->cli = cli;
    w->interval_s = interval;
    status = tsri_top_source_open(&w->source, cli);
    if (!status) {
        if (tsri_cli_flag(cli, "once"))
            status = print_once(w);
        else
            status = is_live(w) ? watch_live(w) : print_all(w);
    }
    tsri_top_source_close(&w->source);
    tsri_free(w);
    return status;
}
