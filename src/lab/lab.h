/* lab.h - `tessera-lab`, the program that measures: the table of its commands, as commands.h is for
 * `tessera`, what moves of KV are timed with, and access traces.
 *
 * Threads: one; the program has no others of its own.
 * Memory:  structs here are embedded; fini gives back what they hold.
 * Errors:  enum tsr_err, with tsr_errmsg. */
#ifndef TSRI_LAB_H
#define TSRI_LAB_H

#include "cli/cli.h"
#include "device/device.h"

/* X(id, name, usage, one line of help, details) */
/* clang-format off */
#define TSRI_LAB_COMMANDS(X) \
    X(calibrate, "calibrate", "[--json] --prompts=FILE [--model=FILE] [--out=FILE] [--csv=FILE] [--limit=N] [--ratio=R] [--rounds=LIST] [--sure=P] [--ratios=LIST] [--biases=LIST] [--selectors=LIST] [--contexts=LIST] [--layers=LIST] [--answers=N] [--int8] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N]", \
      "measure how blending changes a model's answers, and write a profile", \
      "Answers every question with a full prefill and with every setting. The profile has the best\n" \
      "setting, its bias, the results of all settings and a gate. `tessera ask` finds it by itself.\n" \
      "  --prompts=FILE    questions, one JSON object per line: id, documents, question, and\n" \
      "                    optionally set, system, answers, plain (true: no chat template)\n" \
      "  --out=FILE        the profile (default: next to the store, named after the model's space)\n" \
      "  --csv=FILE        table of all measurements; an interrupted run continues where it ends\n" \
      "  --limit=N         only the first N questions\n" \
      "  --ratio=R         ratio to choose the setting for (default: 0.05)\n" \
      "  --rounds=LIST     rounds of the profile, ascending ratios such as 0.05,0.15,0.4; the first\n" \
      "                    one is --ratio (default: one round)\n" \
      "  --sure=P          the gate shows answers that are a prefill's own with probability P or\n" \
      "                    more; others are computed whole (default: 0.95)\n" \
      "  --ratios=LIST     ratios to measure, with the one of --ratio (default: 0,0.05,0.15)\n" \
      "  --biases=LIST     biases to measure (default: 0,-0.3,-0.7,-1.2)\n" \
      "  --selectors=LIST  selectors to measure (default: query,hkvd,link,none)\n" \
      "  --contexts=LIST   contexts to measure: same, pure, primer (default: primer,same)\n" \
      "  --layers=LIST     layers whose attention selector query sums, FROM-TO as shares of the\n" \
      "                    depth (default: 0.667-1)\n" \
      "  --answers=N       generate answers of up to N tokens and compare them; the gate needs\n" \
      "                    them (default: 32; 0: none)\n" \
      "  --int8            also measure --ratio with entries stored as int8\n") \
    X(answers, "answers", "[--json] [--prompts=FILE] [--half=HALF] [--methods=LIST] [--order=free|given] [--weigh] [--csv=FILE] [--shard=I/N] [--limit=N] [--tokens=N] [--summary] [--model=FILE] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N] [TABLE...]", \
      "count the answers that stay right when documents are reused", \
      "Answers every question greedily with a full prefill, with plain reuse, with CacheBlend and as\n" \
      "`tessera ask` does, with the documents known. Prints right answers, F1, exact matches and\n" \
      "agreement with the prefill, with the difference to the prefill on the same questions and its\n" \
      "interval of 95 %. The store on disk is not used.\n" \
      "  --prompts=FILE    questions, as for calibrate, with answers\n" \
      "  --half=HALF       tune, test or all (default) of every set, by a hash of set and id\n" \
      "  --methods=LIST    reuse, cacheblend, tessera (default: these three), or a method with a\n" \
      "                    ratio and without the gate: cacheblend@0.3, tessera@0.05; rounds@0.05 is\n" \
      "                    tessera with one round of that ratio, whatever the gate says of it\n" \
      "  --order=free      the document that the question looks at most goes first, for all methods;\n" \
      "                    keep such tables apart from those in the given order (default: given)\n" \
      "  --weigh           tessera is given the times of this run, as `tessera ask` those that it\n" \
      "                    keeps: a prompt whose trial would cost more than it saves is read in\n" \
      "                    full at once; depends on the machine, so keep such tables apart, too\n" \
      "  --csv=FILE        table of all answers, and of what the gate saw of each; an interrupted run\n" \
      "                    continues where it ends\n" \
      "  --shard=I/N       only part I of N parts, for several processes, each with its own --csv\n" \
      "  --limit=N         only the first N questions of the half\n" \
      "  --tokens=N        tokens of an answer, at most (default: 32)\n" \
      "  --summary         no model: only print what the tables given as arguments say\n") \
    X(bench_copy, "bench copy", "[--json] [--size=SIZE] [--device=NAME] [--variant=NAME] [--threads=N]", \
      "measure how fast the devices of this machine move KV", \
      "Times loads and saves between cells and an engine's pages, alternating with plain copies of\n" \
      "the same size in the same memory. Checks the moved data. Takes a few seconds.\n" \
      "  --size=SIZE     bytes of KV to move (default: 64M; 512M for a device with its own memory)\n" \
      "  --device=NAME   only this device (default: all devices of this machine)\n" \
      "  --variant=NAME  code path of the cpu device: plain, avx2, avx512, neon, ...\n" \
      "  --threads=N     threads of the cpu device besides the caller (default: 0)\n") \
    X(bench_rope, "bench rope", "[--json] [--size=SIZE] [--device=NAME] [--variant=NAME] [--threads=N]", \
      "measure loads that rotate K to another position", \
      "Like bench copy, with K rotated and V copied. Takes the same flags.\n") \
    X(bench_blend, "bench blend", "[--json] [--tokens=LIST] [--document=N] [--ratio=R] [--rounds=N] [--model=FILE] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N]", \
      "measure where the time of an answer from cached documents goes", \
      "Asks random questions about random documents that are cached in host memory: with a full\n" \
      "prefill, with everything reused and with a share recomputed. Prints medians, in ms: the whole;\n" \
      "looking up; waiting for loads; the question's pass; choosing tokens; the pass that computes;\n" \
      "judging the answer; the rest. The store on disk is not used.\n" \
      "  --tokens=LIST     lengths of prompts (default: 1024,6144)\n" \
      "  --document=N      tokens of a document (default: 600)\n" \
      "  --ratio=R         share to recompute, by the question's attention (default: 0.05)\n" \
      "  --rounds=N        rounds to take medians of (default: 9)\n") \
    X(replay, "replay", "[--json] [--host-size=LIST] [--policy=LIST] [--disk-size=SIZE] [--keep=DIR] [--redis=ADDRESS] [--s3=URL] [--plot=FILE] [--as=FORM] [--limit=N] [TRACE]", \
      "replay an access trace and print hit rates", \
      "Looks up each request of the trace in a real cache, loads and compares the hits, and stores\n" \
      "the misses. Without TRACE, uses a small built-in trace.\n" \
      "  --host-size=LIST  host memory sizes to compare, such as 1M,4M; 1M holds 16384 tokens\n" \
      "  --policy=LIST     eviction policies to compare, such as lru,s3fifo,adaptive\n" \
      "  --disk-size=SIZE  add a disk tier of this size, in a temporary directory\n" \
      "  --keep=DIR        keep the disk tier, in DIR; for one host size and one policy\n" \
      "  --redis=ADDRESS   add a redis tier; several replays can share it (tools/fleet)\n" \
      "  --s3=URL          add an s3 tier at ENDPOINT/BUCKET; several replays can share it\n" \
      "  --plot=FILE       also plot the hit rates by size, as SVG\n" \
      "  --as=FORM         trace (default), or prefix: treat every request as a plain prompt\n" \
      "  --limit=N         only the first N requests\n" \
      "A trace has one JSON object per line: {\"chunks\":[[id,tokens],...]} is a prompt of segments,\n" \
      "{\"hash_ids\":[...],\"input_length\":n} is a prompt of prefix blocks of 512 tokens.\n") \
    X(simulate, "simulate", "[--json] [--engines=N] [--per-daemon=N] [--host-size=SIZE] [--disk-size=SIZE] [--redis=NODESxSIZE] [--s3] [--rate=R] [--copies=N] [--duration=S] [--common=SHARE] [--route=HOW] [--kv=LAYERSxBYTES] [--lose-engines=N] [--lose-redis=N] [--lose-at=SHARE] [--engine-gbit=R] [--redis-gbit=R] [--redis-extra=BYTES] [--index-bytes=HOST,COLD] [--as=FORM] [--seed=N] [--limit=N] [TRACE]", \
      "simulate thousands of engines over an access trace", \
      "Plays copies of the trace against caches without KV: hit rate per tier, network, index memory,\n" \
      "hot keys, and what breaks first. Blocks, keys and eviction are the library's own; options such\n" \
      "as --chunk_size, --policy and --redis_admission apply. The same seed gives the same result.\n" \
      "  --engines=N       engines of the fleet (default: 1000)\n" \
      "  --per-daemon=N    engines that share the cache of one tesserad (default: 1, none)\n" \
      "  --host-size=SIZE  host memory for each engine\n" \
      "  --disk-size=SIZE  add a disk tier of this size for each engine\n" \
      "  --redis=NxSIZE    add a Redis cluster of N nodes with SIZE of memory each\n" \
      "  --s3              add a bucket, which keeps everything\n" \
      "  --rate=R          requests per second of an engine (default: 0.3)\n" \
      "  --copies=N        copies of the trace (default: as many as the rate needs)\n" \
      "  --duration=S      seconds of a copy (default: by its timestamps; 1 s a request without)\n" \
      "  --common=SHARE    ids in this share of requests are one text in all copies (default: 0.01;\n" \
      "                    0: all are; 2: none)\n" \
      "  --route=HOW       spread (default), or prefix: an engine gets all requests that begin alike\n" \
      "  --kv=LxBYTES      layers, and bytes of K of a token in each (default: 32x2048, an 8B model)\n" \
      "  --lose-engines=N  replace N engines by empty ones, at --lose-at of the run (default: 0.5)\n" \
      "  --lose-redis=N    replace N Redis nodes by empty ones\n" \
      "  --engine-gbit=R   network of a machine, in Gbit/s (default: 25)\n" \
      "  --redis-gbit=R    network of a Redis node, in Gbit/s (default: 25)\n" \
      "  --redis-extra=N   bytes of an entry in Redis besides KV and tokens (default: 1700)\n" \
      "  --index-bytes=H,C bytes of an entry in the index, in host memory and on a server only\n" \
      "                    (default: measured in a real cache)\n" \
      "  --as=FORM         trace (default), or prefix: treat every request as a plain prompt\n" \
      "  --seed=N          seed of everything drawn at random (default: 1)\n" \
      "  --limit=N         only the first N requests of the trace\n")
/* clang-format on */
TSRI_LAB_COMMANDS(TSRI_COMMAND_RUN)

/* ---- rig: an engine's memory, an entry's cells and a batch on a device, to time moves of KV ---- */

struct tsri_rig_desc {
    const char *device, *variant; /* variant NULL: the best there is */
    uint32_t n_threads;
    uint32_t n_layers, n_heads, dim;
    uint32_t n_tokens;  /* whole cells of 64 */
    uint32_t dtype;     /* of the engine, and of cells that are not int8 */
    uint32_t direction; /* enum tsri_batch_direction */
    uint32_t pairing;   /* 0: NEOX */
    int64_t delta;      /* 0: K is copied too */
    bool hnd, int8;
    bool near; /* the cells are in the device's own memory too, if it has any */
};
struct tsri_rig_memory {
    uint8_t *data;
    size_t bytes;
    uint32_t kind; /* enum tsr_memory */
    struct tsri_region region;
};
struct tsri_rig {
    struct tsri_device *device;
    struct tsr_device_stream *stream;
    bool has_stream;
    struct tsr_kv_layout layout;
    struct tsri_rig_memory engine, cells, flat_engine, flat_cells;
    void **layers[2], **planes;
    struct tsr_kv_cells entry;
    struct tsr_kv_run run;
    struct tsri_batch *batch;
    uint32_t direction;
    int64_t *slots;
    size_t bytes; /* of the engine, moved by one move or copy */
};
/* Errors of the library; after a failure there is nothing to end. */
TSR_MUST int tsri_rig_init(struct tsri_rig *r, const struct tsri_rig_desc *desc);
void tsri_rig_fini(struct tsri_rig *r);
/* All layers; a plain copy of as many bytes between the same kinds of memory; until both are done.
 */
TSR_MUST int tsri_rig_move(struct tsri_rig *r);
TSR_MUST int tsri_rig_copy(struct tsri_rig *r);
TSR_MUST int tsri_rig_wait(struct tsri_rig *r);
/* Moves once and compares; TSR_ECORRUPT. */
TSR_MUST int tsri_rig_check(struct tsri_rig *r);

/* ---- traces: requests as ids of text, never the text ---- */

#define TSRI_TRACE_TOKENS_MAX ((uint32_t)1 << 22) /* of one request */
#define TSRI_TRACE_BLOCK_TOKENS 512u              /* of one of hash_ids */

struct tsri_trace_chunk {
    uint64_t id; /* equal ids are equal text, the shorter one being a start of the longer */
    uint32_t n_tokens;
};
struct tsri_trace_request {
    size_t chunk_first;
    uint32_t n_chunks, n_tokens;
    bool prefix; /* one text in blocks; else independent segments */
};
struct tsri_trace {
    struct tsri_trace_request *requests;
    struct tsri_trace_chunk *chunks;
    size_t n_requests, n_chunks;
    size_t requests_room, chunks_room;
    double duration_s; /* by its timestamps; 0: it has none */
};
/* Reads a file of JSON lines, at most `limit` requests; errors name file and line. */
TSR_MUST int tsri_trace_load(struct tsri_trace *t, const char *path, size_t limit);
/* A small trace made by a formula: questions over a document collection, and chats. */
TSR_MUST int tsri_trace_builtin(struct tsri_trace *t, size_t limit);
void tsri_trace_fini(struct tsri_trace *t);
/* To build one: a request, then its chunks. */
TSR_MUST int tsri_trace_add_request(struct tsri_trace *t, bool prefix);
TSR_MUST int tsri_trace_add_chunk(struct tsri_trace *t, uint64_t id, uint64_t n_tokens);

#endif
