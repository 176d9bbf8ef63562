/* folders.c - the documents of `tessera serve`. Files are cut into passages and indexed at once; the
 * model reads the passages ahead while nobody asks, so that the first question finds them known.
 * Passages that the store has are not read again. */
#include "cli/serving.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BATCH_PASSAGES 16u
#define BATCH_TOKENS 2048u
#define TELL_S 5.0 /* between two lines about the progress */
#define WAIT_MS 250u

/* ---- files ---- */

struct sync {
    const struct tsri_serving *v;
    atomic_bool stop;
};

static void on_sync(void *arg, const struct tsri_sync_state *s)
{
    struct sync *x = arg;
    if (tsri_serving_ends()) atomic_store(&x->stop, true);
    if (s->skipped) {
        tsri_cli_progress_end();
        tsri_cli_note("%s: %s; left out", s->skipped, s->why);
    }
    if (!x->v->cli->json) tsri_cli_progress("indexing documents", s->n_bytes_done, s->n_bytes);
}

/* *more: there is text that was not there before. */
static int sync_folders(struct tsri_serving *v, bool first, bool *more)
{
    struct tsri_sync_result r = {0};
    struct tsri_search_stats all = {0};
    struct sync x = {.v = v};
    *more = false;
    int e = tsri_search_sync(v->search, on_sync, &x, &x.stop, &r);
    tsri_cli_progress_end();
    if (!e) e = tsri_search_stats(v->search, &all);
    if (e < 0) return tsri_cli_failed();
    if (atomic_load(&x.stop)) return 0; /* the next start goes on */
    if (first || r.n_new || r.n_changed || r.n_gone)
        fprintf(stderr,
                "documents: %llu files, %llu passages (%llu new, %llu changed, %llu gone)\n",
                (unsigned long long)all.n_files, (unsigned long long)all.n_passages,
                (unsigned long long)r.n_new, (unsigned long long)r.n_changed,
                (unsigned long long)r.n_gone);
    if (first && all.n_files == 0)
        tsri_cli_note("nothing to answer from yet: text, HTML and PDF files are read, in "
                      "subfolders too, but no hidden ones");
    *more = r.n_new || r.n_changed;
    return 0;
}

int tsri_serving_name_folders(struct tsri_serving *v)
{
    for (int i = 0; i < v->cli->n_flags; i++) {
        if (strcmp(v->cli->flags[i].name, "docs") != 0) continue;
        if (v->n_folders == TSRI_SEARCH_FOLDERS_MAX)
            return tsri_cli_usage(v->cli, "--docs: at most %u folders", TSRI_SEARCH_FOLDERS_MAX);
        const char *folder = v->cli->flags[i].value;
        struct stat st;
        if (stat(folder, &st) != 0) return tsri_cli_fail("--docs=%s: %s", folder, strerror(errno));
        if (!S_ISDIR(st.st_mode))
            return tsri_cli_fail("--docs=%s: not a folder; name the one that it is in", folder);
        v->folders[v->n_folders++] = folder;
    }
    return 0;
}

int tsri_serving_open_folders(struct tsri_serving *v)
{
    char store[3072], home[3200];
    if (v->n_folders == 0) return 0;
    tsri_reader_store(v->cli->config, store, sizeof store);
    snprintf(home, sizeof home, "%s/search", store);
    int e =
        tsri_search_open(&v->search, v->reader.storeless ? NULL : home, v->folders, v->n_folders);
    if (e < 0) return tsri_cli_failed();
    /* From before the first look on, so that no change is missed. */
    if (tsri_folder_watch_open(&v->watch, v->folders, v->n_folders) < 0)
        tsri_cli_note("changes of the documents are not noticed: %s", tsr_errmsg());
    bool more;
    return sync_folders(v, true, &more);
}

void tsri_serving_close_folders(struct tsri_serving *v)
{
    tsri_folder_watch_close(v->watch);
    tsri_search_close(v->search);
    v->watch = NULL;
    v->search = NULL;
}

/* ---- reading ahead ---- */

struct ahead {
    struct tsri_serving *v;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool over; /* under lock: the job that was submitted last */
    enum tsri_end why;
    char failed[256];
    uint32_t n_learned;             /* under lock: segments of that job */
    struct tsr_blend_report report; /* under lock: of the last one of them */
    bool measured;                  /* under lock: `report` was not looked at yet */
    bool disturbed;                 /* questions were answered since the last one */
    uint64_t n_tokens, n_done;
    /* Time in which no question was answered, and tokens that were read in the rest of it. */
    double active_s, tick_s, told_s;
    uint64_t n_beside, n_seen;
    bool told, changed; /* changed: there is more text since it began */
};

static void on_event(void *arg, const struct tsri_job_event *e)
{
    struct ahead *a = arg;
    if (e->kind != TSRI_EVENT_END && e->kind != TSRI_EVENT_LEARN) return;
    pthread_mutex_lock(&a->lock);
    a->n_learned = e->n_done;
    if (e->kind == TSRI_EVENT_LEARN) {
        a->report = *e->report;
        a->measured = true;
        pthread_mutex_unlock(&a->lock);
        return;
    }
    a->over = true;
    a->why = e->why;
    if (e->why == TSRI_END_FAILED) snprintf(a->failed, sizeof a->failed, "%s", e->text);
    pthread_cond_signal(&a->ended);
    pthread_mutex_unlock(&a->lock);
}

static void say_time(char *text, size_t bytes, double seconds)
{
    if (!isfinite(seconds))
        snprintf(text, bytes, "not known yet");
    else if (seconds < 90)
        snprintf(text, bytes, "%.0f s", seconds);
    else if (seconds < 5400)
        snprintf(text, bytes, "%.0f min", seconds / 60);
    else
        snprintf(text, bytes, "%.1f h", seconds / 3600);
}

static uint64_t kv_bytes(const struct tsr_model_info *m, uint64_t n_tokens)
{
    uint64_t number = m->kv_dtype == TSR_DTYPE_F32 ? 4 : 2;
    return n_tokens * 2 * m->n_layers * m->n_kv_heads * m->head_dim * number;
}

/* Before it begins: how much there is, how long that takes, and what it takes on disk. */
static void tell_estimate(const struct ahead *a)
{
    const struct tsri_reader *r = &a->v->reader;
    char path[4096], time[32];
    tsri_reader_beside(r, a->v->cli, "speed", path, sizeof path);
    double seconds = tsri_speed_guess(path, r->info.device, 512) / 512 * (double)a->n_tokens;
    say_time(time, sizeof time, seconds);
    fprintf(
        stderr,
        "reading ahead: %llu tokens at most, time %s, disk %s in files of %s; "
        "what the store has is skipped\n",
        (unsigned long long)a->n_tokens, time,
        tsri_cli_size(kv_bytes(&r->info, a->n_tokens), (char[32]){0}),
        tsri_cli_size(tsri_config_options(a->v->cli->config)->disk_segment_size, (char[32]){0}));
}

/* Four times a second: n_done tokens are read. Whether questions are being answered. */
static bool tick(struct ahead *a, uint64_t n_done)
{
    double now = tsri_cli_now_s();
    bool busy = tsri_serve_busy(a->v->serve) > 0;
    if (busy)
        a->n_beside += n_done - a->n_seen;
    else
        a->active_s += now - a->tick_s;
    a->n_seen = n_done;
    a->tick_s = now;
    return busy;
}

static void tell_progress(struct ahead *a, uint64_t n_done)
{
    bool busy = tick(a, n_done), terminal = isatty(STDERR_FILENO);
    char time[32], how[96];
    if (a->v->cli->json || a->tick_s - a->told_s < TELL_S) return;
    if (n_done > a->n_tokens) a->n_tokens = n_done; /* files that came meanwhile */
    double rate = (double)(n_done - a->n_beside) / a->active_s;
    say_time(time, sizeof time, (double)(a->n_tokens - n_done) / rate);
    if (busy)
        snprintf(how, sizeof how, "waits for questions");
    else if (n_done == a->n_beside)
        snprintf(how, sizeof how, "time %s", time);
    else
        snprintf(how, sizeof how, "%.0f a second, %s left", rate, time);
    fprintf(stderr, "%sread %llu of %llu tokens, %s%s", terminal ? "\r" : "",
            (unsigned long long)n_done, (unsigned long long)a->n_tokens, how,
            terminal ? "\033[K" : "\n");
    fflush(stderr);
    a->told_s = a->tick_s;
    a->told = true;
}

static int add_passage(struct tsri_dialog *d, const struct tsri_passage *p)
{
    struct tsri_document doc = {
        .name = (char *)(uintptr_t)p->title, .text = (char *)(uintptr_t)p->text, .bytes = p->bytes};
    return tsri_dialog_add_document(d, &doc);
}

/* Changes are found while documents are read ahead, which may take hours. */
static void look_for_changes(struct ahead *a)
{
    struct tsri_serving *v = a->v;
    if (!v->watch || tsri_folder_watch_wait(v->watch, 0) <= 0 || tsri_serving_ends()) return;
    if (a->told && isatty(STDERR_FILENO)) fputc('\n', stderr);
    bool more;
    a->told = false;
    a->changed |= sync_folders(v, false, &more) == 0 && more;
}

/* A segment that had the engine for itself tells how fast the model reads. */
static void note_speed(struct ahead *a)
{
    char path[4096];
    pthread_mutex_lock(&a->lock);
    struct tsr_blend_report r = a->report;
    bool measured = a->measured;
    a->measured = false;
    pthread_mutex_unlock(&a->lock);
    if (tsri_serve_busy(a->v->serve)) a->disturbed = true;
    if (!measured) return;
    tsri_reader_beside(&a->v->reader, a->v->cli, "speed", path, sizeof path);
    if (!a->disturbed) tsri_speed_note_report(path, a->v->reader.info.device, &r);
    a->disturbed = false;
}

/* Waits for the job, looks after the folders and says how far it is. */
static void wait_for_batch(struct ahead *a, const struct tsri_dialog *d, uint64_t number)
{
    struct tsri_engine *engine = tsri_serve_engine(a->v->serve);
    bool cancelled = false;
    pthread_mutex_lock(&a->lock);
    while (!a->over) {
        (void)tsri_cond_wait(&a->ended, &a->lock, tsri_now_ns() + WAIT_MS * (uint64_t)1000000);
        uint32_t n = a->n_learned;
        pthread_mutex_unlock(&a->lock);
        if (tsri_serving_ends() && !cancelled) {
            tsri_engine_cancel(engine, number);
            cancelled = true;
        }
        note_speed(a);
        look_for_changes(a);
        /* The first segment is the system prompt. */
        uint64_t n_here = n > 1 ? d->segments[n - 1].offset + d->segments[n - 1].n_tokens -
                                      d->segments[0].n_tokens
                                : 0;
        tell_progress(a, a->n_done + n_here);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    note_speed(a);
}

/* Submits a prompt of passages and waits until they are stored; false: it ends, or failed. */
static bool read_batch(struct ahead *a, const struct tsri_dialog *d)
{
    struct tsri_job_desc job = {.tokens = d->tokens,
                                .n_tokens = (uint32_t)d->n_tokens,
                                .segments = d->segments,
                                .n_segments = (uint32_t)d->n_segments,
                                .system = 1,
                                .max_tokens = 1,
                                .mode = TSRI_MODE_LEARN,
                                .event = on_event,
                                .arg = a};
    uint64_t number = 0;
    a->over = false;
    a->n_learned = 0;
    if (tsri_engine_submit(tsri_serve_engine(a->v->serve), &job, &number) < 0) {
        snprintf(a->failed, sizeof a->failed, "%s", tsr_errmsg());
        return false;
    }
    wait_for_batch(a, d, number);
    return a->why == TSRI_END_DONE;
}

/* All passages, in prompts of several; `counts` only counts their tokens. */
static int each_batch(struct ahead *a, bool counts)
{
    struct tsri_passages page = {0}, more = {0};
    uint32_t n_after =
        tsr_blend_primer(a->v->reader.blend) + 8; /* the primer, a token to end with */
    int e = tsri_search_list(a->v->search, NULL, BATCH_PASSAGES, &page);
    while (!e && page.n && !tsri_serving_ends()) {
        struct tsri_dialog d = {0};
        e = tsri_dialog_init(&d, a->v->reader.model, NULL);
        size_t first = d.n_tokens, i = 0;
        while (!e && i < page.n && d.n_tokens - first < BATCH_TOKENS) {
            size_t n_tokens = d.n_tokens, n_segments = d.n_segments;
            e = add_passage(&d, &page.items[i++]);
            if (e || d.n_tokens + n_after <= d.context) continue;
            /* It does not fit: the next prompt has it, or none where it is too long alone. */
            i -= n_tokens > first;
            d.n_tokens = n_tokens;
            d.n_segments = n_segments;
            if (n_tokens > first) break;
        }
        size_t n = d.n_tokens - first;
        if (!e && counts) a->n_tokens += n;
        if (!e && !counts && n) {
            e = tsri_dialog_add_nothing(&d);
            if (!e && !read_batch(a, &d)) e = TSR_EIO;
            a->n_done += n;
            if (!e) tell_progress(a, a->n_done);
        }
        tsri_dialog_fini(&d);
        if (!e) e = tsri_search_list(a->v->search, &page.items[i - 1], BATCH_PASSAGES, &more);
        tsri_passages_fini(&page);
        page = more;
        more = (struct tsri_passages){0};
    }
    tsri_passages_fini(&page);
    return e;
}

/* True: there is more text meanwhile. */
static bool read_ahead(struct tsri_serving *v)
{
    struct ahead a = {.v = v};
    pthread_mutex_init(&a.lock, NULL);
    tsri_cond_init(&a.ended);
    int e = each_batch(&a, true);
    if (!e && a.n_tokens && !tsri_serving_ends()) {
        if (!v->cli->json) tell_estimate(&a);
        a.tick_s = a.told_s = tsri_cli_now_s();
        e = each_batch(&a, false);
    }
    if (a.told && isatty(STDERR_FILENO)) fputc('\n', stderr);
    if (e < 0 && !tsri_serving_ends())
        tsri_cli_note("reading ahead stopped: %s", a.failed[0] ? a.failed : tsr_errmsg());
    else if (!tsri_serving_ends() && a.n_tokens && !v->cli->json)
        fprintf(stderr, "read %llu tokens in %.1f s: all documents are known\n",
                (unsigned long long)a.n_done, a.active_s);
    if (a.n_done && tsr_cache_flush(v->reader.cache) < 0)
        tsri_cli_note("not everything was stored: %s", tsr_errmsg());
    pthread_cond_destroy(&a.ended);
    pthread_mutex_destroy(&a.lock);
    return a.changed;
}

void tsri_serving_run(struct tsri_serving *v)
{
    bool reads = v->search && !tsri_cli_flag(v->cli, "no-read-ahead") && !v->reader.storeless;
    bool changed = true, more;
    while (!tsri_serving_ends()) {
        if (changed && reads && read_ahead(v)) continue;
        changed = false;
        int noticed = v->watch ? tsri_folder_watch_wait(v->watch, WAIT_MS) : 0;
        if (!v->watch) usleep(WAIT_MS * 1000);
        if (noticed > 0 && !tsri_serving_ends())
            changed = sync_folders(v, false, &more) == 0 && more;
    }
}
