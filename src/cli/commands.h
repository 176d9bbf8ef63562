/* commands.h - THE table of the commands of `tessera`. One row and one file with its run function
 * make a command: the row declares tsri_cmd_<id>(), is found by name, and is all that `tessera
 * help` knows. struct tsri_command (cli.h) says what its parts are. */
#ifndef TSRI_COMMANDS_H
#define TSRI_COMMANDS_H

/* What all commands of `kv` take. */
/* clang-format off */
#define TSRI_KV_FLAGS \
    "  --model=NAME, --dtype=TYPE, --layers=N, --heads=N, --dim=N  the model's KV: f16, bf16 or f32\n" \
    "  --theta=T           rope_theta of a model with plain RoPE over the whole head, in halves (neox)\n" \
    "  --rope=TEXT         any other RoPE: 'rope=llama3 pairing=neox dims=128 theta=500000 factor=8\n" \
    "                      trained=8192 low=1 high=4'; tessera(1) has all words\n" \
    "  --connect[=SOCKET]  in the cache of a server; else in the one that the options describe\n" \
    "Without --theta and --rope, text is loaded only at the position where it was computed. A RoPE\n" \
    "that is not the model's gives wrong KV: nothing here knows the model. The KV memory is\n" \
    "registered by the command itself, for as long as it runs.\n"
/* clang-format on */

/* X(id, name, usage, one line of help, details) */
/* clang-format off */
#define TSRI_COMMANDS(X) \
    X(ask, "ask", "[--model=FILE] [--doc=FILE] [--docs=DIR] [--all] [--passages=N] [--order=free|given] [--system=TEXT] [--ratio=R] [--selector=NAME] [--profile=FILE] [--no-gate] [--no-store] [--max=N] [--temperature=T] [--top-p=P] [--seed=N] [--no-repeat-stop] [--weights=TYPE] [--device=NAME] [--threads=N] [--stats] [--compare] [--json] [--chat[=FILE] | QUESTION]", \
      "answer a question about documents", \
      "The model reads each document once. The result is kept in a store, and later questions reuse\n" \
      "it, with any documents in any order. The store is in the user's cache folder, or at the\n" \
      "option disk_path. The first question about new documents is answered by reading everything;\n" \
      "after the answer the documents are stored (Ctrl-C stops that without harm; ingest stores them\n" \
      "ahead). Prints the answer to standard output, and its cost to standard error: the time to the\n" \
      "first token, how much faster than a full read that is, and how likely a full read would give\n" \
      "the same answer.\n" \
      "  --model=FILE     GGUF file of a llama, qwen2 or qwen3 model, or 0.5b, 1.5b or 135m for one that\n" \
      "                   tools/setup --model installed (default: TESSERA_MODEL, or the first of these)\n" \
      "  --doc=FILE       a document; repeat it for more; - is standard input\n" \
      "  --docs=DIR       the text, HTML and PDF files in a folder and its subfolders; of more than\n" \
      "                   8192 tokens, the passages that the question is about are read\n" \
      "  --all            read such folders whole, if they fit into the model's context\n" \
      "  --passages=N     maximum number of passages for a question (default: 8)\n" \
      "  --order=free     documents may change places: the one that the question looks at most goes\n" \
      "                   first, where it is exact (default with --docs alone); --order=given: never\n" \
      "  --system=TEXT    system prompt\n" \
      "  --ratio=R        share of the reused tokens to recompute, such as 0.05 or 5%\n" \
      "  --selector=NAME  how to choose these tokens: query, hkvd, link, none or full\n" \
      "  --profile=FILE   profile of the model, from tessera-lab calibrate (default: the one that is\n" \
      "                   installed for the model)\n" \
      "  --no-gate        recompute once, even if the answer is unlikely to be a full prefill's\n" \
      "  --no-store       use the store, but store nothing\n" \
      "  --max=N          maximum length of the answer in tokens (default: 256)\n" \
      "  --temperature=T, --top-p=P, --seed=N  sample tokens (default: take the most likely one)\n" \
      "  --no-repeat-stop do not end an answer that repeats itself\n" \
      "  --weights=q8_0   convert the weights while loading: more memory, faster on some machines\n" \
      "  --device=NAME    cpu, or a ggml device such as cuda\n" \
      "  --threads=N      number of CPU threads\n" \
      "  --stats          print more about the cost\n" \
      "  --compare        also answer by a full read; print both answers, with their times\n" \
      "  --chat[=FILE]    several questions, one per line, from FILE or standard input\n" \
      "With the option chunked (--enable-chunk-cache), QUESTION may be a whole prompt, cut at the\n" \
      "option separator (##): SYSTEM ## DOCUMENT ## DOCUMENT ## QUESTION.\n") \
    X(ingest, "ingest", "[--json] [--model=FILE] [--system=TEXT] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N] PATH ...", \
      "read documents into the store before the first question", \
      "PATH is a file, or a folder with everything in it. Use the model, system prompt and store of\n" \
      "the questions. Documents that are already in the store are not computed again.\n") \
    X(serve, "serve", "[--docs=DIR] [--port=N] [--host=ADDRESS] [--token-file=FILE] [--no-open] [--no-read-ahead] [--max=N] [--temperature=T] [--at-once=N] [--time-limit=S] [--model=FILE] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N] [--json]", \
      "answer OpenAI clients and a chat page, with documents", \
      "Starts an HTTP server on this machine with the OpenAI API (/v1/chat/completions,\n" \
      "/v1/completions, /v1/models). Prints the address of its page, with a token of this run, and the\n" \
      "file with the API key. With --docs, passages that fit the question come before it, and the answer names\n" \
      "them. The documents are indexed and then read ahead in the background; changes are noticed.\n" \
      "With the option chunked (--enable-chunk-cache), the last message may hold a text, documents and a\n" \
      "question, cut at the option separator (## by default).\n" \
      "Ctrl-C or SIGTERM ends it: answers that are being written are finished.\n" \
      "  --docs=DIR       answer from the files in a folder and its subfolders; repeat it for more\n" \
      "  --port=N         port to listen at (default: 7465); 0: any that is free\n" \
      "  --host=ADDRESS   address to listen at (default: 127.0.0.1); others need --token-file\n" \
      "  --token-file=FILE  file with the token, mode 0600 (default: serve.token in the store, made\n" \
      "                   if it is missing)\n" \
      "  --no-open        do not open the page in a browser\n" \
      "  --no-read-ahead  read documents when they are asked about\n" \
      "  --max=N          length of an answer in tokens, if a request names none (default: 1024)\n" \
      "  --temperature=T  if a request names none (default: 0, the most likely token)\n" \
      "  --at-once=N      answers that are written at the same time (default: 4)\n" \
      "  --time-limit=S   seconds for one answer (default: 600)\n" \
      "  --model, --profile, --weights, --device, --threads  as for ask\n" \
      "  --json           print the address as JSON\n") \
    X(config_show, "config show", "[--json] [KEY ...]", \
      "show all options, their values and where the values come from", \
      "Flags override the environment, the environment overrides the file, and the file overrides\n" \
      "the defaults. With KEYs, shows only these options.\n") \
    X(config_check, "config check", "[--json] FILE", \
      "check a configuration file", \
      "Checks the file alone, without environment and flags. Prints ok and exits 0, or prints the\n" \
      "mistake with its place and exits 1.\n") \
    X(config_doc, "config doc", "[--man]", \
      "print the manual of all options", \
      "Prints Markdown, or the manual page with --man.\n") \
    X(stat, "stat", "[--json | --prometheus] [--all] [--connect[=SOCKET]]", \
      "print the metrics of a cache", \
      "Opens a cache with the given configuration and prints its metrics.\n" \
      "  --all               also print metrics that are 0\n" \
      "  --connect[=SOCKET]  the metrics of a running server\n") \
    X(top, "top", "[--connect[=SOCKET]] [--token-file=FILE] [--interval=S] [--once] [--json] [URL]", \
      "watch a running server", \
      "Shows what a cache server does, live: hit rate, tokens and bytes per second, tiers, tenants and\n" \
      "the slowest calls of the last hour. The server is tesserad, a server inside an engine, or\n" \
      "tessera serve. The owner of the server sees all tenants, others see themselves. If the server\n" \
      "goes away, waits until it is back. Keys: q or Ctrl-C quits, space asks at once.\n" \
      "  --connect[=SOCKET]  the socket of the server (default: option server_socket)\n" \
      "  URL                 ask over HTTP: http://127.0.0.1:7464 for tesserad, and\n" \
      "                      http://127.0.0.1:7465 for tessera serve\n" \
      "  --token-file=FILE   token for the URL, mode 0600 (of tessera serve: serve.token in its store)\n" \
      "  --interval=S        seconds between two samples (default: 2)\n" \
      "  --once              print one report after one interval, and exit\n" \
      "  --json              print reports as JSON, one per line\n") \
    X(doctor, "doctor", "[--json]", \
      "check this machine against the configuration", \
      "Prints one line per check: ok, warn (it works, but slower or with less than configured) or\n" \
      "fail, and what to do about it. Exits 1 if a check fails.\n") \
    X(inspect, "inspect", "[--json] [--store=DIR | --connect[=SOCKET]] [--space=HEX] PROMPT-FILE", \
      "show which cached text a prompt would match", \
      "Stores the documents of the file in a cache in memory, then looks up the prompt as a prefix,\n" \
      "by segments and at any offset. The file is one JSON object. A TEXT is a list of tokens, or a\n" \
      "string, which is split into words:\n" \
      "  \"prompt\"     TEXT, or a list of TEXTs, which are its segments; required\n" \
      "  \"system\"     TEXT, the system prompt before it\n" \
      "  \"documents\"  list of documents to store, each a TEXT or an object with \"text\", \"kind\"\n" \
      "               (segment or prefix) and \"behind\", the system prompt it was computed after\n" \
      "  --store=DIR         also search this store; reads no KV, and works while a cache uses it\n" \
      "  --connect[=SOCKET]  search the cache of a server instead; the file must have tokens\n" \
      "  --space=HEX         first digits of the space's fingerprint, if there are several spaces\n" \
      "Options such as --chunk_size, --match_min_tokens and --min_match_ratio apply.\n") \
    X(ls, "ls", "[--json] [--order=ORDER] DIR | --connect[=SOCKET]", \
      "list the entries of a store or a server", \
      "Only reads, and works while a cache uses the store.\n" \
      "  --order=ORDER       key (default), size, or eviction: the next to be evicted first\n" \
      "  --connect[=SOCKET]  the entries of a server, in memory and in lower tiers\n") \
    X(verify, "verify", "[--json] [--repair] DIR", \
      "check all data of a store against its checksums", \
      "Prints every bad cell, and exits 1 if there is one.\n" \
      "  --repair  remove entries with bad cells; the store must not be in use\n") \
    X(evict, "evict", "[--json] DIR SIZE | --connect[=SOCKET] SIZE", \
      "remove the entries that would be evicted next", \
      "Removes entries in eviction order until they amount to SIZE bytes (such as 500M). Compact the\n" \
      "store to free the disk space. The store must not be in use.\n" \
      "  --connect[=SOCKET]  on a server: evict until SIZE bytes of its host memory are free\n") \
    X(clear, "clear", "[--json] [--space=HEX] DIR | --connect[=SOCKET]", \
      "remove all entries of a store or a server", \
      "The store must not be in use.\n" \
      "  --space=HEX         only the space whose fingerprint begins with these digits\n" \
      "  --connect[=SOCKET]  on a server: everything that is not in use, in all tiers\n") \
    X(compact, "compact", "[--json] DIR", \
      "free the disk space of removed entries", \
      "The store must not be in use.\n") \
    X(warm, "warm", "[--json] DIR | --connect[=SOCKET]", \
      "read a store into the page cache, or into a server's memory", \
      "For caches that use the page cache (disk_direct=false), after a reboot.\n" \
      "  --connect[=SOCKET]  load entries from a server's lower tiers, while it has free memory\n") \
    X(flush, "flush", "[--json] [--connect[=SOCKET]]", \
      "make a server write all its entries to lower tiers", \
      "Returns when everything that was stored before is written and survives a crash.\n") \
    X(pin, "pin", "[--json] [--connect[=SOCKET]] [--space=HEX] PROMPT-FILE", \
      "keep a prompt in a server's memory", \
      "Pins the cached parts of the prompt: its prefix and its segments. They are not evicted until\n" \
      "they are unpinned as many times. The file is the same as for inspect, with tokens.\n" \
      "  --space=HEX  first digits of the space's fingerprint, if the server has several spaces\n") \
    X(unpin, "unpin", "[--json] [--connect[=SOCKET]] [--space=HEX] PROMPT-FILE", \
      "undo pin", \
      "Takes the file that was given to pin. Prints the number of entries that were unpinned.\n") \
    X(kv_store, "kv store", "[--json] --model=NAME --dtype=TYPE --layers=N --heads=N --dim=N [--theta=T | --rope=TEXT] [--connect[=SOCKET]] PROMPT-FILE KV-FILE", \
      "store KV that was computed ahead", \
      "Stores the KV of a text that was computed alone, from position 0. KV-FILE is the engine's\n" \
      "memory, packed as [layer][K, V][token][head][dim]. PROMPT-FILE is as for inspect, with tokens.\n" \
      TSRI_KV_FLAGS) \
    X(kv_lookup, "kv lookup", "[--json] --model=NAME --dtype=TYPE --layers=N --heads=N --dim=N [--theta=T | --rope=TEXT] [--connect[=SOCKET]] [--recipe=TEXT] PROMPT-FILE", \
      "find text that was computed ahead in a prompt", \
      "Finds segments of the prompt, and stored text at any offset.\n" \
      "  --recipe=TEXT       also what kv store-final has stored under it\n" \
      TSRI_KV_FLAGS) \
    X(kv_retrieve, "kv retrieve", "[--json] --model=NAME --dtype=TYPE --layers=N --heads=N --dim=N [--theta=T | --rope=TEXT] [--connect[=SOCKET]] [--recipe=TEXT] [--position-offset=N] PROMPT-FILE KV-FILE", \
      "load text that was computed ahead, rotated to its place", \
      "Writes KV-FILE: the KV of the prompt, zero where nothing was found. Prints what is in place.\n" \
      "  --position-offset=N the prompt begins at this position\n" \
      "  --recipe=TEXT       also what kv store-final has stored under it\n" \
      TSRI_KV_FLAGS) \
    X(kv_store_final, "kv store-final", "[--json] --model=NAME --dtype=TYPE --layers=N --heads=N --dim=N [--theta=T | --rope=TEXT] [--connect[=SOCKET]] --recipe=TEXT PROMPT-FILE KV-FILE", \
      "store the blended KV of a whole prompt", \
      "It was computed over approximate KV: only lookups with the same recipe find it.\n" \
      "  --recipe=TEXT       how it was made\n" \
      TSRI_KV_FLAGS) \
    X(version, "version", "[--json]", \
      "print the version, libraries and CPU features", \
      "Prints version, compiler, libraries, CPU features, and the default model and store of\n" \
      "`tessera ask`.\n")
/* clang-format on */

#endif
