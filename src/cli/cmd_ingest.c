/* cmd_ingest.c - `tessera ingest`: reads documents into the store ahead of the first question, so
 * that this one finds them known. What the store has already is not computed again. */
#include "cli/asking.h"
#include "cli/store.h"

#include <stdlib.h>
#include <sys/stat.h>

struct ingesting {
    struct tsri_cli *cli;
    struct tsri_reader reader;
    struct tsri_documents documents;
    struct tsri_folders *folders;
    size_t n_folders, n_folders_room;
    uint64_t n_files, n_passages, n_passages_all; /* of the folders */
    uint64_t n_tokens, n_stored;
};

/* A piece that was computed just now shows how fast the model reads. */
static void note_speed(const struct ingesting *x, uint32_t n_tokens, double seconds)
{
    char path[4096];
    tsri_reader_beside(&x->reader, x->cli, "speed", path, sizeof path);
    tsri_speed_note(path, x->reader.info.device, n_tokens, seconds);
}

static int ingest_piece(struct ingesting *x, const struct tsri_document *piece)
{
    struct tsri_reader *r = &x->reader;
    struct tsri_dialog d;
    int e = tsri_cli_check(tsri_dialog_init(&d, r->model, tsri_cli_flag(x->cli, "system")));
    if (!e) e = tsri_cli_check(tsri_dialog_add_document(&d, piece));
    if (!e) e = tsri_cli_check(tsri_dialog_add_nothing(&d));
    uint32_t n_primer = tsr_blend_primer(r->blend);
    if (!e && d.n_tokens + n_primer > r->info.context)
        e = tsri_cli_fail(
            "%s: a piece has %zu tokens and the primer %u, the model's context has %u", piece->name,
            d.n_tokens, n_primer, r->info.context);
    struct tsr_ask_desc ask = {.size = sizeof ask,
                               .tokens = d.tokens,
                               .n_tokens = (uint32_t)d.n_tokens,
                               .segments = d.segments,
                               .n_segments = (uint32_t)d.n_segments,
                               .system = 1};
    double start = tsri_cli_now_s();
    int stored = e ? 0 : tsr_blend_learn(r->blend, &ask, NULL, NULL);
    if (stored == TSR_EFULL)
        e = tsri_cli_fail("%s: the store is full", piece->name);
    else if (stored < 0)
        e = tsri_cli_failed();
    else
        note_speed(x, (uint32_t)stored, tsri_cli_now_s() - start);
    x->n_tokens += d.n_tokens;
    if (stored > 0) x->n_stored += (uint32_t)stored;
    tsri_dialog_fini(&d);
    return e;
}

/* Piece by piece, as in a question: each is computed by itself. */
static int ingest_document(struct ingesting *x, const struct tsri_document *doc)
{
    struct tsri_document piece = {.name = doc->name};
    int e = 0;
    for (size_t done = 0; done < doc->bytes && !e; done += piece.bytes) {
        piece.text = doc->text + done;
        piece.bytes = tsri_passage_bytes(piece.text, doc->bytes - done);
        e = ingest_piece(x, &piece);
    }
    return e;
}

static int ingest_passage(void *arg, const struct tsri_passage *p)
{
    struct ingesting *x = arg;
    struct tsri_document piece = {(char *)(uintptr_t)p->title, (char *)(uintptr_t)p->text,
                                  p->bytes};
    tsri_cli_progress("ingest", x->n_passages++, x->n_passages_all);
    return ingest_piece(x, &piece);
}

/* A folder has a database of its own, that of `ask --docs`. */
static int open_path(struct ingesting *x, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return tsri_cli_check(tsri_documents_add_file(&x->documents, path));
    void *more =
        tsri_make_room(x->folders, &x->n_folders_room, x->n_folders + 1, sizeof *x->folders);
    if (!more) return tsri_cli_failed();
    x->folders = more;
    struct tsri_folders *f = &x->folders[x->n_folders++];
    memset(f, 0, sizeof *f);
    int e = tsri_folders_add(f, path);
    if (!e) e = tsri_folders_open(f, x->cli, true);
    x->n_files += f->stats.n_files;
    x->n_passages_all += f->stats.n_passages;
    return e;
}

static int ingest_all(struct ingesting *x)
{
    int e = 0;
    for (size_t i = 0; i < x->n_folders && !e; i++)
        e = tsri_folders_each(&x->folders[i], ingest_passage, x);
    for (size_t i = 0; i < x->documents.n && !e; i++) {
        tsri_cli_progress("ingest", x->n_passages + i, x->n_passages_all + x->documents.n);
        e = ingest_document(x, &x->documents.items[i]);
    }
    tsri_cli_progress_end();
    if (!e && tsr_cache_flush(x->reader.cache) < 0) e = tsri_cli_failed();
    return e;
}

int tsri_cmd_ingest(struct tsri_cli *cli)
{
    struct ingesting *x = tsri_alloc(1, sizeof *x);
    if (!x) return tsri_cli_fail("no memory");
    x->cli = cli;
    int e = tsri_cli_want_args(cli, 1, INT32_MAX);
    for (int i = 0; i < cli->n_args && !e; i++)
        e = open_path(x, cli->args[i]);
    if (!e) e = tsri_reader_open(&x->reader, cli);
    double start = tsri_cli_now_s();
    if (!e) e = ingest_all(x);
    double took = tsri_cli_now_s() - start;
    unsigned long long n = x->n_files + x->documents.n;
    if (!e && cli->json)
        printf("{\"documents\":%llu,\"tokens\":%llu,\"stored\":%llu,\"seconds\":%.3f}\n", n,
               (unsigned long long)x->n_tokens, (unsigned long long)x->n_stored, took);
    else if (!e)
        printf("%llu document%s, %llu tokens: %llu new in the store, %.1f s\n", n,
               n == 1 ? "" : "s", (unsigned long long)x->n_tokens, (unsigned long long)x->n_stored,
               took);
    tsri_reader_close(&x->reader);
    tsri_documents_fini(&x->documents);
    for (size_t i = 0; i < x->n_folders; i++)
        tsri_folders_fini(&x->folders[i]);
    free(x->folders);
    tsri_free(x);
    return e;
}
