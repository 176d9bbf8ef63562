/* commands.h - THE table of the commands of `tessera`. One row and one file with its run function
 * make a command: the row declares tsri_cmd_<id>(), is found by name, and is all that `tessera
 * help` knows. struct tsri_command (cli.h) says what its parts are. */
#ifndef TSRI_COMMANDS_H
#define TSRI_COMMANDS_H

/* X(id, name, usage, one line of help, details) */
/* clang-format off */
#define TSRI_COMMANDS(X)                                                                           \
    X(ask, "ask", "[--model=FILE] [--doc=FILE] [--docs=DIR] [--system=TEXT] [--ratio=R] [--selector=NAME] [--profile=FILE] [--no-gate] [--max=N] [--temperature=T] [--top-p=P] [--seed=N] [--weights=TYPE] [--device=NAME] [--threads=N] [--stats] [--compare] [--json] [--chat[=FILE] | QUESTION]", \
      "answer a question about documents, which are read once, ever",                              \
      "Documents are read by the model piece by piece, and what it made of them is kept in a\n"    \
      "store: in the user's cache folder, or where the option disk_path says. The next question\n" \
      "about them, in any company and order, finds them known. The answer goes to standard\n"     \
      "output, then a line about its cost to standard error.\n"                                    \
      "  --model=FILE     a llama, qwen2 or qwen3 GGUF file (default: TESSERA_MODEL, or the\n"     \
      "                   SmolLM2 of tools/setup --model)\n"                                        \
      "  --doc=FILE       a document; may be given again; - is standard input\n"                    \
      "  --docs=DIR       every text file below a folder\n"                                         \
      "  --system=TEXT    the system prompt\n"                                                      \
      "  --ratio=R        share of what is known to compute anew, as 0.05 or 5%\n"                  \
      "  --selector=NAME  how that is chosen: query, hkvd, link, none, full\n"                      \
      "  --profile=FILE   what was measured of the model (default: found by the model)\n"           \
      "  --no-gate        do not compute more where trouble is predicted\n"                         \
      "  --max=N          longest answer in tokens (default: 256)\n"                                \
      "  --temperature=T, --top-p=P, --seed=N  draw tokens; without them always the likeliest\n"    \
      "  --weights=q8_0   convert the weights while loading: more memory, faster on some machines\n" \
      "  --device=NAME    cpu, or a device of ggml such as cuda\n"                                  \
      "  --threads=N      of the processor\n"                                                       \
      "  --stats          more about the cost; --compare: also compute it all and say how far off\n" \
      "  --chat[=FILE]    several turns, a question a line, of FILE or of standard input\n")        \
    X(ingest, "ingest", "[--json] [--model=FILE] [--system=TEXT] [--profile=FILE] [--weights=TYPE] [--device=NAME] [--threads=N] PATH ...", \
      "read documents into the store ahead of questions",                                          \
      "Files, or folders with everything below them. Model, system prompt and store must be\n"     \
      "those of the questions; what is there already is not computed again.\n")                    \
    X(config_show, "config show", "[--json] [KEY ...]",                                            \
      "show every option, its value and where it came from",                                       \
      "Flags stand before the environment, the environment before the file, the file before\n"     \
      "the default. With KEYs, only those options.\n")                                             \
    X(config_check, "config check", "[--json] FILE",                                               \
      "check a configuration file",                                                                \
      "Reads the file alone, without environment and flags. Says ok and exits 0, or names the\n"   \
      "place and the mistake and exits 1.\n")                                                      \
    X(config_doc, "config doc", "[--man]",                                                         \
      "write the manual of all options",                                                           \
      "Markdown, or mdoc for the manual page with --man. Made from the table that the options\n"   \
      "themselves are made from.\n")                                                               \
    X(stat, "stat", "[--json | --prometheus] [--all] [--connect[=SOCKET]]",                        \
      "print the metrics of a cache",                                                              \
      "Opens a cache with the given configuration and prints what it counted; metrics that are\n"  \
      "0 are left out of the table unless --all is given.\n"                                       \
      "  --connect[=SOCKET]  of the cache of a server\n")                                          \
    X(doctor, "doctor", "[--json]",                                                                \
      "check this machine against the configuration",                                              \
      "Each line is ok, warn (works, but slower or less than asked) or fail, with what to do.\n"   \
      "Exits 1 when a line says fail.\n")                                                          \
    X(inspect, "inspect", "[--json] [--store=DIR | --connect[=SOCKET]] [--space=HEX] PROMPT-FILE", \
      "show how a prompt would be matched",                                                        \
      "The documents of the file are stored in a cache in memory, then its prompt is looked up\n"  \
      "as a prefix, by segments and at any offset. The file is one JSON object; a TEXT is a\n"     \
      "list of tokens, or a string, which is cut at words for show:\n"                             \
      "  \"prompt\"     TEXT, or a list of them, which are then its segments; required\n"          \
      "  \"system\"     TEXT, the system prompt before it\n"                                       \
      "  \"documents\"  list of what is stored, each a TEXT or an object with \"text\",\n"         \
      "               \"kind\" (segment or prefix) and \"behind\", the system prompt it saw\n"     \
      "  --store=DIR   look in this store too; its KV is not read, and a cache may be using it\n"  \
      "  --connect[=SOCKET]  look in the cache of a server instead; the file has tokens then\n"    \
      "  --space=HEX   beginning of the fingerprint of its space, where it has several\n"          \
      "Options such as --chunk_size, --match_min_tokens and --min_match_ratio count.\n")           \
    X(ls, "ls", "[--json] [--order=ORDER] DIR | --connect[=SOCKET]",                               \
      "list what a store directory, or a server, holds",                                           \
      "Reads only, also while a cache uses the directory.\n"                                       \
      "  --order=ORDER  key (default), size, or eviction: the first ones would go first\n"         \
      "  --connect[=SOCKET]  of a server: what it has in memory and in the tiers below\n")         \
    X(verify, "verify", "[--json] [--repair] DIR",                                                 \
      "read a whole store and name every bad cell",                                                \
      "Compares every cell with its checksum and exits 1 when one is bad.\n"                       \
      "  --repair  drop entries with bad cells; the store must not be in use\n")                   \
    X(evict, "evict", "[--json] DIR SIZE | --connect[=SOCKET] SIZE",                               \
      "drop the entries that would go first",                                                      \
      "In eviction order, until SIZE bytes (as 500M) of entries are dropped. The space is given\n"  \
      "back by compaction. The store must not be in use.\n"                                        \
      "  --connect[=SOCKET]  of a server: until SIZE bytes of its host memory are free\n")         \
    X(clear, "clear", "[--json] [--space=HEX] DIR | --connect[=SOCKET]",                           \
      "drop every entry of a store, or of a server",                                               \
      "The store must not be in use.\n"                                                            \
      "  --space=HEX  only those of the space whose fingerprint begins so\n"                       \
      "  --connect[=SOCKET]  of a server: everything that is not in use, in every tier\n")         \
    X(compact, "compact", "[--json] DIR",                                                          \
      "give the bytes of dropped entries back to the file system",                                 \
      "The store must not be in use.\n")                                                           \
    X(warm, "warm", "[--json] DIR | --connect[=SOCKET]",                                           \
      "read a store into the page cache, or into the memory of a server",                          \
      "For caches that do not bypass it (disk_direct=false), after a restart of the machine.\n"    \
      "  --connect[=SOCKET]  brings up what a server has in lower tiers, while memory is free\n")  \
    X(flush, "flush", "[--json] [--connect[=SOCKET]]",                                             \
      "have a server write everything down",                                                       \
      "Returns when what was stored before is in the tiers that want it, and survives a crash.\n") \
    X(pin, "pin", "[--json] [--connect[=SOCKET]] [--space=HEX] PROMPT-FILE",                       \
      "keep the text of a prompt in a server's memory",                                            \
      "What of the prompt is known, as prefix and by segments, is not evicted until it is\n"       \
      "unpinned as often. The file is that of inspect, with tokens.\n"                             \
      "  --space=HEX  beginning of the fingerprint of the space, where the server has several\n")  \
    X(unpin, "unpin", "[--json] [--connect[=SOCKET]] [--space=HEX] PROMPT-FILE",                   \
      "undo pin",                                                                                  \
      "Of the same prompt; returns how many entries were pinned.\n")                               \
    X(version, "version", "[--json]",                                                              \
      "print version, libraries and features",                                                     \
      "Version, compiler, the libraries in use, the processor features that count, and the\n"     \
      "model and the store that `tessera ask` uses where no flag names others.\n")
/* clang-format on */

#endif
