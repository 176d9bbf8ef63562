# Tessera - a KV cache that reuses text at any position.
#
#   make            the library, the programs, the examples and the benches
#   make test       install missing packages, build, run every test (the README's command)
#   make demo       a small model answers questions about documents it has read before
#   make cuda       the CUDA device, libtessera-cuda.so, with nvcc
#   make gpu-kit    everything to test and measure that device on a machine with a GPU, in $B/gpu
#   make check-arm  the tests of devices and models on 64-bit Arm, emulated on other machines
#   make check      the tests alone, without looking for missing packages
#   make test-python     the tests of the Python package
#   make test-vllm, make test-sglang   Tessera inside real engines (tools/setup --engines first)
#   make bench-vllm      time to first token and tokens per second inside vLLM
#   make bench-check     have the benches become worse? Compares ratios with those recorded in bench/
#   make check-long the slow tier: fuzzers 60 s each, many more crash rounds
#   make fuzz       build the fuzzers alone
#   make lint       formatting, clang-tidy, cppcheck, shellcheck, ruff, mypy, man pages, layer order
#   make install    to PREFIX (/usr/local) and LIBDIR (PREFIX/lib), below DESTDIR
#   make package    wheels, an sdist and Debian packages into dist/ (tools/setup --package first; needs root)
#   make check-packages  install, try and remove them in fresh Debian 12 and 13 trees
#   make uninstall  remove what install has put there, with the same variables
#   make doc        regenerate docs/config.md and the option pages from the tables
#   make clean
#
# Variables: B=build            where everything is built; side-by-side builds are B=other
#            SAN=address,undefined | thread     sanitizer builds (use a separate B)
#            WERROR=1           warnings are errors (CI)
#            WITH_RPATH=0       no search path in libraries and programs, for packages of a system
#            WITH_CUDA=1        all, check and install include the CUDA device
#            WITH_MODEL=1 | 0   require | leave out the executor on llama.cpp's ggml; default: build it
#                               if tools/setup --model has been run
#            CC, CFLAGS, LDFLAGS, PREFIX, LIBDIR, DESTDIR, V=1 (show commands), T=glob (tests to run)

VERSION := $(shell cat VERSION)
SOMAJOR := $(firstword $(subst ., ,$(VERSION)))
B       ?= build
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
CFLAGS  ?= -O2 -g
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)
comma   := ,

# liburing may be missing: the disk tier then reads and writes with threads.
URING    := $(shell pkg-config --exists liburing 2>/dev/null && echo liburing)
# Without hiredis there is no redis tier.
REDIS    := $(shell pkg-config --exists hiredis 2>/dev/null && echo hiredis)
# Without libcurl (from 7.85 on: signatures, safe in threads) and expat there is no s3 tier. Their headers are
# used here; the libraries are loaded when an s3 tier is opened.
S3       := $(shell pkg-config --exists 'libcurl >= 7.85' expat 2>/dev/null && echo libcurl expat)
PKGS     := yaml-0.1 libxxhash libcrypto $(URING) $(REDIS) $(S3)
PKG_CF   := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(filter-out $(S3),$(PKGS)) 2>/dev/null)
HTTP_LIBS := $(shell pkg-config --libs libmicrohttpd 2>/dev/null)
# Only the programs read JSON, search documents and speak HTTP. libxml2 is loaded when the first page is read.
PROGRAM_PKGS := jansson sqlite3 libmicrohttpd
XML_CF   := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags libxml-2.0 2>/dev/null))
PROGRAM_LIBS := $(if $(XML_CF),$(shell pkg-config --libs $(PROGRAM_PKGS) 2>/dev/null))
# Said before anything is built: what is missing, by the names of Debian's packages. Only who may install
# packages can do something about it.
NEEDS_BUILD := $(filter-out setup test demo clean help package check-packages,$(or $(MAKECMDGOALS),all))
ifneq ($(NEEDS_BUILD),)
no_command = $(if $(shell command -v $(firstword $1) 2>/dev/null),,$2)
no_library = $(if $(shell pkg-config --exists $1 2>/dev/null && echo yes),,$2)
ifeq ($(call no_command,$(CC),no),no)
ifneq ($(origin CC),default)
$(error no compiler: $(CC))
endif
endif
ifeq ($(and $(PKG_LIBS),$(HTTP_LIBS),$(PROGRAM_LIBS),$(if $(call no_command,$(CC),no),,yes)),)
MISSING := $(strip $(call no_command,$(CC),gcc libc6-dev) $(call no_command,pkg-config,pkg-config) \
    $(call no_library,yaml-0.1,libyaml-dev) $(call no_library,libxxhash,libxxhash-dev) $(call no_library,libcrypto,libssl-dev) \
    $(call no_library,libmicrohttpd,libmicrohttpd-dev) $(call no_library,jansson,libjansson-dev) \
    $(call no_library,sqlite3,libsqlite3-dev) $(call no_library,libxml-2.0,libxml2-dev))
$(error missing: $(MISSING). tools/setup installs them, which needs root or sudo; nothing was built (docs/dependencies.md))
endif
endif

# The C++ compiler that belongs to CC: sanitizers of two compilers do not mix.
ifeq ($(origin CXX),default)
CXX := $(or $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC))),$(if $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC))),c++)
endif
WARN := -Wall -Wextra -Wpedantic -Wshadow -Wvla -Wundef -Wstrict-prototypes -Wmissing-prototypes \
        -Wconversion $(if $(WERROR),-Werror)
# In C++ a function may not have the name of a struct unwarned, as ours do.
CXXWARN := $(filter-out -Wshadow -Wstrict-prototypes -Wmissing-prototypes,$(WARN))
CPPF := -D_GNU_SOURCE -DTSR_VERSION='"$(VERSION)"' -Iinclude -Isrc \
        $(if $(URING),-DTSRI_HAVE_URING) $(if $(REDIS),-DTSRI_HAVE_REDIS) \
        $(if $(S3),-DTSRI_HAVE_S3) $(PKG_CF)
SANF := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
# No product and sum in one rounding unless the code says so: on Arm clang would, gcc and x86 would not,
# and a document turned by one build would not have the bytes of another.
FLOATS := -ffp-contract=off
ALLC  = -std=c11 $(FLOATS) -fPIC -fvisibility=hidden $(WARN) $(CPPF) $(SANF) $(CFLAGS)
LIBS := $(PKG_LIBS) -lpthread -lm -ldl
# Devices, the model library and what is loaded on demand are looked for beside the library first, wherever
# it was put. The libraries of a distribution have their places.
WITH_RPATH ?= 1
LIB_RPATH := $(if $(filter 1,$(WITH_RPATH)),-Wl$(comma)-rpath$(comma)'$$ORIGIN')
BIN_RPATH := $(if $(filter 1,$(WITH_RPATH)),-Wl$(comma)-rpath$(comma)'$$ORIGIN/../lib')

# A folder of src/ includes and calls itself and those to its left, which for blend, connector and
# daemon is up to tessera.c (tools/check-tree.sh): base < ... < cache < tessera.c < these < cli.
LAYERS   := base config stats chunk policy device wire tier disk redis s3 cache find served deliver blend connector
TESSERAD_SRC := src/daemon/tesserad.c src/daemon/http.c
CUDA_SRC := src/device/cuda.c src/device/cuda_batch.c src/device/cuda_stage.c
REDIS_SRC := $(wildcard src/redis/*.c)
S3_SRC   := $(wildcard src/s3/*.c)
ASCEND_SRC := $(wildcard src/device/ascend*.c)
ABSENT_SRC := $(CUDA_SRC) $(ASCEND_SRC) $(if $(REDIS),,$(REDIS_SRC)) $(if $(S3),,$(S3_SRC))
LIB_SRC  := $(filter-out $(ABSENT_SRC),$(foreach d,$(LAYERS),$(wildcard src/$d/*.c))) src/tessera.c \
            $(filter-out $(TESSERAD_SRC),$(wildcard src/daemon/*.c))
# The programs' own code is an archive, so that tests and benches reach it; their mains are apart.
MAIN_SRC := src/cli/commands.c src/lab/lab.c
CLI_SRC  := $(filter-out $(MAIN_SRC),$(wildcard src/search/*.c src/answer/*.c src/serve/*.c src/cli/*.c src/lab/*.c))
SUP_SRC  := $(filter-out $(if $(REDIS),,tests/support/redis%) $(if $(S3),,tests/support/s3%),$(wildcard tests/support/*.c))
TEST_SRC := $(filter-out $(if $(REDIS),,tests/redis/%) \
              $(if $(S3),,tests/s3/%),$(wildcard tests/*/test_*.c))
BEN_SRC  := $(filter-out $(if $(REDIS),,bench/bench_redis.c) $(if $(S3),,bench/bench_s3.c),$(wildcard bench/bench_*.c))
EX_SRC   := $(wildcard examples/*.c)
FUZZ_SRC := $(filter-out $(if $(REDIS),,tests/fuzz/fuzz_redis%) $(if $(S3),,tests/fuzz/fuzz_s3%),\
              $(wildcard tests/fuzz/fuzz_*.c))

# libtessera-model runs GGUF files on ggml; a library of its own, loaded at run time. llama.cpp is
# that of TESSERA_LLAMA_DIR, of tools/setup --model, or of the system (pkg-config).
WITH_MODEL ?=
LLAMA_DIR := $(if $(filter 0,$(WITH_MODEL)),,$(or $(TESSERA_LLAMA_DIR),$(shell tools/setup-model --print-dir)))
# In sudo make install the home is that of root: what this tree was built with stays.
ifneq ($(and $(SUDO_USER),$(LLAMA_DIR)),)
ifeq ($(wildcard $(LLAMA_DIR)/include/llama.h),)
LLAMA_DIR := $(patsubst %/include,%,$(word 2,$(file <$(B)/llama)))
endif
endif
LLAMA_PC  := $(if $(filter 0,$(WITH_MODEL)),,$(shell pkg-config --exists llama ggml 2>/dev/null && echo llama ggml))
ifneq ($(wildcard $(LLAMA_DIR)/include/llama.h),)
LLAMA_CF   := -isystem $(LLAMA_DIR)/include
LLAMA_LINK := -L$(LLAMA_DIR)/lib -lllama -lggml -lggml-base
LLAMA_LIBS := $(LLAMA_LINK) -Wl,-rpath,$(LLAMA_DIR)/lib
# An installation takes its libraries along: a home folder is no place to run from.
LLAMA_TAKE := $(LLAMA_DIR)/lib
else ifneq ($(LLAMA_PC),)
LLAMA_CF   := $(shell pkg-config --cflags $(LLAMA_PC)) -DTSRI_LLAMA_SYSTEM
LLAMA_LINK := $(shell pkg-config --libs $(LLAMA_PC))
LLAMA_LIBS := $(LLAMA_LINK)
else ifeq ($(WITH_MODEL),1)
$(error no llama.cpp found for WITH_MODEL=1: run tools/setup --model (docs/dependencies.md))
endif
MODEL_SRC := $(wildcard src/model/*.c)
# libllama throws: one file of ours catches.
MODEL_CXX := $(patsubst %.cpp,$(B)/obj/%.o,$(wildcard src/model/*.cpp))
MODEL_KIT := $(filter-out tests/model/test_% tests/model/make_%,$(wildcard tests/model/*.c))
MODEL_MAKE := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/model/make_*.c))

obj  = $(patsubst %.c,$(B)/obj/%.o,$1)
LIBA := $(B)/lib/libtessera.a
CLIA := $(B)/lib/libtessera-cli.a
# What a program is linked of: archives behind what needs them.
linked = $(filter-out %.a,$^) $(filter %/libtessera-cli.a,$^) $(filter %/libtessera.a,$^)
LIBS_SO := $(B)/lib/libtessera.so
TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(TEST_SRC))
PLUGINS := $(patsubst tests/device/plugin_%.c,$(B)/tests/device/libtessera-%.so,\
             $(wildcard tests/device/plugin_*.c)) $(B)/tests/device/libtessera-fakegpu.so
BENS  := $(patsubst bench/%.c,$(B)/bench/%,$(BEN_SRC))
EXS   := $(patsubst examples/%.c,$(B)/examples/%,$(EX_SRC))
FUZZ  := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
# The CUDA device is a library of its own, loaded at run time. sm_90 is machine code, other chips from sm_80
# on compile the PTX when they first load it.
NVCC      ?= $(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc),nvcc)
WITH_CUDA ?=
NVFLAGS   ?= -O3 -gencode arch=compute_80,code=compute_80 -gencode arch=compute_90,code=sm_90
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC) 2>/dev/null)))
CUDA_OBJ  := $(call obj,$(CUDA_SRC)) $(B)/obj/src/device/cuda_kv.o $(B)/obj/src/device/cuda_select.o
CUDA_LIB  := $(B)/lib/libtessera-cuda.so $(B)/bench/bench_cuda
ASCEND_LIB := $(B)/lib/libtessera-ascend.so
FAKEACL := $(addprefix $(B)/tests/fakeacl/,libascendcl.so libascendcl-bare.so libopapi.so)
CUDA_ALL  := $(if $(WITH_CUDA),$(CUDA_LIB))
MODEL_LIB := $(if $(LLAMA_CF),$(B)/lib/libtessera-model.so $(MODEL_MAKE))
PROFILES := $(patsubst %,$(B)/share/tessera/%,$(wildcard profiles/*.yaml))
BINS  := $(B)/bin/tessera $(B)/bin/tessera-lab $(B)/bin/tesserad

PYTHON ?= python3

.PHONY: all lib cuda gpu-kit check-arm test check check-long test-python test-vllm test-sglang bench-vllm bench-check demo lint install uninstall package check-packages doc clean help fuzz setup FORCE
all: lib $(BINS) $(BENS) $(EXS) $(TESTS) $(PLUGINS) $(ASCEND_LIB) $(FAKEACL) $(CUDA_ALL) $(MODEL_LIB) $(PROFILES)
lib: $(LIBA) $(LIBS_SO) $(B)/tessera.pc
cuda: have-nvcc $(CUDA_LIB)
gpu-kit: have-nvcc $(CUDA_LIB) $(LIBS_SO) $(BINS) $(TESTS)
	@B=$(B) tools/gpu-kit
check-arm:
	@B=$(B) tools/check-arm

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

# What B was built with: another compiler or sanitizer builds everything anew, and the tests that
# call make or a compiler do as this build did.
$(B)/flags: FORCE
	@mkdir -p $(@D)
	@printf '%s\n' 'CC=$(CC)' 'SAN=$(SAN)' 'CFLAGS=$(CFLAGS)' 'LDFLAGS=$(LDFLAGS)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

$(B)/obj/%.o: %.c Makefile $(B)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$(Q)$(CC) $(ALLC) -MMD -MP -c $< -o $@

$(B)/obj/%.o: %.cpp Makefile $(B)/flags
	@mkdir -p $(@D)
	@echo "  CXX   $<"
	$(Q)$(CXX) -std=c++17 $(FLOATS) -fPIC -fvisibility=hidden $(CXXWARN) $(CPPF) $(SANF) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/obj/tests/%.o $(B)/obj/bench/%.o: CPPF += -Itests

$(LIBA): $(call obj,$(LIB_SRC))
$(CLIA): $(call obj,$(CLI_SRC)) $(B)/obj/serve_page.o
$(LIBA) $(CLIA):
	@mkdir -p $(@D)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(LIBS_SO): $(call obj,$(LIB_SRC)) src/tessera.map
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,libtessera.so.$(SOMAJOR) -Wl,--version-script=src/tessera.map \
	    $(LIB_RPATH) $(SANF) $(LDFLAGS) $(call obj,$(LIB_SRC)) -o $@ $(LIBS)
	$(Q)ln -sf libtessera.so $@.$(SOMAJOR)

$(B)/tessera.pc: tessera.pc.in VERSION FORCE
	@mkdir -p $(@D)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|' -e 's|@VERSION@|$(VERSION)|' -e 's|@REQUIRES@|$(filter-out $(S3),$(PKGS))|' $< > $@

$(call obj,src/base/error.c src/stats/stats.c tests/stats/test_stats.c): VERSION

$(B)/obj/src/search/html.o $(B)/obj-fuzz/src/search/html.o: private CPPF += $(XML_CF)
# liburing tells its version from 2.4 on only.
$(B)/obj/src/cli/libraries.o $(B)/obj-fuzz/src/cli/libraries.o: private CPPF += $(if $(URING),-DTSRI_URING_VERSION='"$(shell pkg-config --modversion liburing)"')
$(B)/bin/tessera: $(call obj,src/cli/commands.c)
$(B)/bin/tessera-lab: $(call obj,src/lab/lab.c)
$(B)/bin/tessera $(B)/bin/tessera-lab: $(CLIA) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) $(SANF) $(BIN_RPATH) $(LDFLAGS) $(linked) -o $@ $(PROGRAM_LIBS) $(LIBS)

$(B)/bin/tesserad: $(call obj,$(TESSERAD_SRC)) $(B)/obj/page.o $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) $(SANF) $(BIN_RPATH) $(LDFLAGS) $^ -o $@ $(LIBS) $(HTTP_LIBS)

# Where the program looks for them, as after an installation.
$(B)/share/tessera/profiles/%.yaml: profiles/%.yaml
	@mkdir -p $(@D)
	$(Q)cp $< $@

# Pages as arrays of bytes, so that a program is one file: $(call embed,name,file).
define embed
{ echo 'extern const unsigned char $1[]; extern const size_t $1_bytes;'; \
  echo 'const unsigned char $1[] = {'; od -An -v -tu1 $2 | sed 's/[0-9][0-9]*/&,/g'; \
  echo '}; const size_t $1_bytes = sizeof $1;'; }
endef
$(B)/obj/page.c: src/daemon/page.html docs/watching/grafana.json docs/watching/alerts.yaml
	@mkdir -p $(@D)
	$(Q){ echo '#include <stddef.h>'; $(call embed,tsri_page,$<); $(call embed,tsri_dashboard,docs/watching/grafana.json); \
	  $(call embed,tsri_alerts,docs/watching/alerts.yaml); } > $@
$(B)/obj/serve_page.c: src/serve/page.html src/serve/page.js src/serve/page.css
	@mkdir -p $(@D)
	$(Q){ echo '#include <stddef.h>'; $(call embed,tsri_serve_page,src/serve/page.html); \
	  $(call embed,tsri_serve_script,src/serve/page.js); $(call embed,tsri_serve_style,src/serve/page.css); } > $@
$(B)/obj/serve_page.o: $(B)/obj/serve_page.c
	$(Q)$(CC) $(ALLC) -c $< -o $@
$(B)/obj/page.o: $(B)/obj/page.c
	$(Q)$(CC) $(ALLC) -c $< -o $@

$(B)/tests/%: $(B)/obj/tests/%.o $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANF) $(LDFLAGS) $(linked) -o $@ $(LIBS)

# They see the inside of the programs, and some start them.
CLI_TESTS := $(filter $(addprefix $(B)/tests/,search/% answer/% serve/% cli/% lab/%),$(TESTS))
$(CLI_TESTS): $(CLIA) | $(BINS)
$(CLI_TESTS): private LIBS += $(PROGRAM_LIBS)
# Runs a model that it makes.
$(B)/tests/serve/test_engine_model: | $(MODEL_LIB)

# The example is one of the tiers that it tests.
$(B)/tests/tier/test_contract: $(B)/obj/tests/tier/custom_tier.o
$(B)/obj/tests/tier/custom_tier.o: examples/custom_tier.c Makefile $(B)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(ALLC) -Wno-missing-prototypes -Dmain=example_main -c $< -o $@

# One program of several files, which starts tesserad.
LIFE_SRC := $(filter-out tests/life/test_%,$(wildcard tests/life/*.c))
$(B)/tests/life/test_life: $(call obj,$(LIFE_SRC)) | $(B)/bin/tesserad

# Changes when llama.cpp comes, goes or moves.
$(B)/llama: FORCE
	@mkdir -p $(@D)
	@echo '$(LLAMA_CF) $(LLAMA_LIBS)' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# What runs on AMX's tiles, once more for tests on processors without them.
ON_TILES := $(wildcard src/model/*_tiles_x86.c)
FAKE_TILES := $(ON_TILES:src/model/%.c=$(B)/obj/faketiles/%.o) $(B)/obj/tests/faketiles/here.o

MODEL_OBJ := $(call obj,$(MODEL_SRC) $(wildcard tests/model/*.c tests/faketiles/*.c)) $(FAKE_TILES) $(MODEL_CXX)
$(MODEL_OBJ): $(B)/llama
# What libllama throws passes through our frames on its way to guard.cpp.
$(MODEL_OBJ): CPPF += $(if $(LLAMA_CF),$(LLAMA_CF) -DTSRI_HAVE_LLAMA) -fexceptions

# The same library twice: one finds llama.cpp where it was built, the other beside itself.
$(B)/lib/libtessera-model.so: MODEL_LIBS := $(LLAMA_LIBS)
$(B)/installed/libtessera-model.so: MODEL_LIBS := $(LLAMA_LINK) $(if $(LLAMA_TAKE),-Wl$(comma)-rpath$(comma)'$$ORIGIN/tessera')
$(B)/lib/libtessera-model.so $(B)/installed/libtessera-model.so: $(call obj,$(MODEL_SRC)) $(MODEL_CXX) src/model/model.map
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CXX) -shared -Wl,--version-script=src/model/model.map $(SANF) $(LDFLAGS) \
	    $(filter %.o,$^) -o $@ $(MODEL_LIBS) $(PKG_LIBS) -lpthread -lm

# Their tests see the inside of the library, and llama.cpp to compare with; without it they only say
# that it is missing.
$(B)/tests/model/%: $(B)/obj/tests/model/%.o \
                    $(if $(LLAMA_CF),$(call obj,$(MODEL_SRC) $(MODEL_KIT)) $(MODEL_CXX)) \
                    $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	$(Q)$(if $(LLAMA_CF),$(CXX),$(CC)) $(SANF) $(LDFLAGS) $^ -o $@ $(LLAMA_LIBS) $(LIBS)

$(B)/obj/faketiles/%.o: src/model/%.c tests/faketiles/tiles.h Makefile $(B)/flags
	@mkdir -p $(@D)
	@echo "  CC    $< (fake tiles)"
	$(Q)$(CC) $(ALLC) -include tests/faketiles/tiles.h -MMD -MP -c $< -o $@
$(B)/tests/faketiles/%: $(B)/obj/tests/faketiles/%.o \
                        $(if $(LLAMA_CF),$(call obj,$(filter-out $(ON_TILES) src/model/tiles_x86.c,$(MODEL_SRC)) $(MODEL_KIT)) $(FAKE_TILES) $(MODEL_CXX)) \
                        $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	$(Q)$(if $(LLAMA_CF),$(CXX),$(CC)) $(SANF) $(LDFLAGS) $^ -o $@ $(LLAMA_LIBS) $(LIBS)

# Runs beside libllama where there is one; otherwise it only says so.
BLEND_OBJ := $(call obj,bench/bench_blend.c bench/bench_serve.c bench/llama_side.c)
$(BLEND_OBJ): $(B)/llama
$(BLEND_OBJ): CPPF += -Ibench $(if $(LLAMA_CF),$(LLAMA_CF) -DTSRI_HAVE_LLAMA)
$(B)/bench/bench_serve: $(CLIA)
$(B)/bench/bench_serve: private LIBS := $(PROGRAM_LIBS) $(LIBS)
$(B)/bench/bench_blend $(B)/bench/bench_serve: $(B)/bench/%: $(B)/obj/bench/%.o $(B)/obj/bench/llama_side.o $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) $(SANF) $(LDFLAGS) $(linked) -o $@ $(LLAMA_LIBS) $(LIBS)

have-nvcc: FORCE
	@command -v $(NVCC) >/dev/null || { echo 'no nvcc. Install the CUDA toolkit, and put its folder bin into PATH or' \
	    'name it: NVCC=DIR/bin/nvcc. make package PACKAGES=cuda fetches one by itself (docs/install.md)' >&2; exit 1; }
$(CUDA_OBJ): | have-nvcc
$(call obj,$(CUDA_SRC)): CPPF += -isystem $(CUDA_HOME)/include
$(B)/obj/%.o: %.cu Makefile
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) -std=c++17 $(NVFLAGS) -Xcompiler -fPIC,-fvisibility=hidden -Iinclude -Isrc -Itests -Ibench \
	    -MMD -MP -c $< -o $@

$(B)/lib/libtessera-cuda.so: $(CUDA_OBJ)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(NVCC) $(NVFLAGS) -shared $^ -o $@

$(B)/bench/bench_cuda: $(B)/obj/bench/bench_cuda.o $(B)/obj/bench/cuda_side.o $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(NVCC) $(NVFLAGS) $^ -o $@ $(PKG_LIBS) -lm -ldl

# The device for Ascend NPUs, which opens AscendCL at run time and computes with the loops of the cpu device.
$(ASCEND_LIB): $(call obj,$(ASCEND_SRC)) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL $(SANF) $(LDFLAGS) $^ -o $@ -lm -ldl -lpthread

# Devices as shared objects, next to the tests that load them.
$(B)/tests/device/libtessera-%.so: $(B)/obj/tests/device/plugin_%.o
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(SANF) $(LDFLAGS) $< -o $@

# A GPU for tests, over the reference of src/device. Programs that have loaded it find it by its soname.
$(B)/tests/device/libtessera-fakegpu.so: $(call obj,$(wildcard tests/fakegpu/*.c)) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -Wl,--exclude-libs,ALL $(SANF) $(LDFLAGS) $^ -o $@ $(LIBS)
# AscendCL for tests, and one that has only what every CANN has.
ACL_OBJ := $(call obj,$(wildcard tests/fakeacl/*.c))
$(B)/tests/fakeacl/libascendcl.so $(B)/tests/fakeacl/libascendcl-bare.so: $(ACL_OBJ) $(LIBA) tests/fakeacl/bare.map
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) $(if $(findstring bare,$@),-Wl$(comma)--version-script=tests/fakeacl/bare.map) \
	    -Wl,--exclude-libs,ALL $(SANF) $(LDFLAGS) $(filter-out %.map,$^) -o $@ -lm -lpthread
# Its operators; they find it by its soname, since it is loaded before them.
$(B)/tests/fakeacl/libopapi.so: $(call obj,$(wildcard tests/fakeopapi/*.c)) $(LIBA) $(B)/tests/fakeacl/libascendcl.so
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -Wl,--exclude-libs,ALL $(SANF) $(LDFLAGS) $^ -o $@ -lm -lpthread
$(TESTS): | $(B)/tests/device/libtessera-fakegpu.so $(FAKEACL) $(ASCEND_LIB)

$(B)/bench/%: $(B)/obj/bench/%.o $(call obj,$(SUP_SRC)) $(LIBA)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) $(SANF) $(LDFLAGS) $(linked) -o $@ $(LIBS)

# They measure and read traces as tessera-lab does, or search as tessera does.
$(addprefix $(B)/bench/,bench_copy bench_policy bench_recall bench_search): $(CLIA)
$(addprefix $(B)/bench/,bench_copy bench_policy bench_recall bench_search): private LIBS += $(PROGRAM_LIBS)

# Examples link the shared library, as a user's program would.
$(B)/examples/%: $(B)/obj/examples/%.o $(LIBS_SO)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$(Q)$(CC) $(SANF) $(LDFLAGS) $< -o $@ -L$(B)/lib -Wl,-rpath,'$$ORIGIN/../lib' -ltessera $(LIBS)

# libFuzzer needs clang, whatever CC is: the fuzzers have a library of their own, compiled once.
FUZZC = clang -std=c11 $(FLOATS) $(CPPF) -g -O1 -fno-sanitize-recover=all
FUZZA := $(B)/fuzz/libtessera.a
FUZZ_OBJ := $(patsubst %.c,$(B)/obj-fuzz/%.o,$(LIB_SRC))

$(B)/obj-fuzz/%.o: %.c Makefile
	@mkdir -p $(@D)
	@echo "  CC    $< (to fuzz)"
	$(Q)$(FUZZC) -fsanitize=fuzzer-no-link,address,undefined -MMD -MP -c $< -o $@

$(FUZZA): $(FUZZ_OBJ)
$(B)/fuzz/libtessera-cli.a: $(patsubst %.c,$(B)/obj-fuzz/%.o,$(CLI_SRC)) $(B)/obj/serve_page.o
$(FUZZA) $(B)/fuzz/libtessera-cli.a:
	@mkdir -p $(@D)
	@echo "  AR    $@"
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/fuzz/%: tests/fuzz/%.c $(FUZZA)
	@echo "  FUZZ  $@"
	$(Q)$(FUZZC) -Itests -fsanitize=fuzzer,address,undefined $(linked) -o $@ $(LIBS)
# Readers of the programs' files, which are not in the library.
CLI_FUZZ := $(addprefix $(B)/fuzz/fuzz_,prompt_file questions trace html passages api top)
$(CLI_FUZZ): $(B)/fuzz/libtessera-cli.a
$(CLI_FUZZ): private LIBS += $(PROGRAM_LIBS)
# Files of models are parsed by ggml first.
$(B)/fuzz/fuzz_gguf: $(if $(LLAMA_CF),$(B)/obj-fuzz/src/model/gguf.o)
$(B)/fuzz/fuzz_gguf $(B)/obj-fuzz/src/model/gguf.o: private CPPF += $(if $(LLAMA_CF),$(LLAMA_CF) -DTSRI_HAVE_LLAMA)
$(B)/fuzz/fuzz_gguf: private LIBS += $(LLAMA_LIBS)
fuzz: $(FUZZ)

setup:
	@tools/setup

test: setup
	@$(MAKE) --no-print-directory check

check: all
	@B=$(B) tests/run.sh '$(T)'

# Finds the library of this build by the variable; nothing is installed.
test-python: $(LIBS_SO)
	@PYTHONPATH=python TESSERA_LIBRARY=$(abspath $(LIBS_SO)) $(PYTHON) -m unittest discover -s python/tests

# Real engines, in their own environment; each program says what it needs (python/tests/engine.sh).
# What most rests on comes first: .ci/run goes as far as its time lasts. On the command line: some of them.
VLLM_TESTS := async ends discovery engine stages workers hybrid drafts events marks worth weighed learning model npu places pieces host_work fused graphs compiled kernels failed blend ranks handover many traffic chunked context room
test-vllm: $(LIBS_SO) $(B)/bin/tesserad $(ASCEND_LIB) $(FAKEACL)
	@for t in $(VLLM_TESTS); do \
	    case $$t in \
	    failed) B=$(B) TESSERA_TEST_DEVICE=cpu python/tests/engine.sh gpu/run.py --jobs=2 failed ;; \
	    *) B=$(B) python/tests/engine.sh vllm/test_$$t.py ;; \
	    esac || exit; \
	done
test-sglang: $(LIBS_SO)
	@B=$(B) python/tests/engine.sh test_kv_pool.py
	@B=$(B) python/tests/engine.sh sglang/test_storage.py
	@B=$(B) python/tests/engine.sh sglang/test_radix.py
	@B=$(B) python/tests/engine.sh sglang/test_discovery.py
	@B=$(B) python/tests/engine.sh sglang/test_ranks.py
	@B=$(B) python/tests/engine.sh sglang/test_isolation.py
	@B=$(B) python/tests/engine.sh sglang/test_engine.py TestBlending
	@B=$(B) python/tests/engine.sh sglang/test_engine.py TestRanks
	@B=$(B) python/tests/engine.sh sglang/test_server.py
	@B=$(B) python/tests/engine.sh sglang/test_commands.py
	@B=$(B) TESSERA_TEST_DEVICE=cpu python/tests/engine.sh gpu/test_sglang.py TestStorage
bench-check: $(BENS)
	@B=$(B) tools/bench-check
bench-vllm: $(LIBS_SO) $(B)/bin/tessera-lab $(MODEL_LIB)
	@B=$(B) python/tests/engine.sh vllm/bench.py --json

check-long: all fuzz
	@B=$(B) tests/run-long.sh

# Without a network or a model the demo does with less. DEMO=--check: fail if an answer is wrong.
demo: setup
	@tools/setup --model || true
	@$(MAKE) --no-print-directory $(if $(findstring j,$(filter -j% --jobserver%,$(MAKEFLAGS))),,-j$$(nproc)) $(B)/bin/tessera $(B)/bin/tessera-lab $(PROFILES) $$(test -f "$$(tools/setup-model --print-dir)/include/llama.h" && echo $(B)/lib/libtessera-model.so)
	@tools/demo $(DEMO) $(B)/bin/tessera

lint: lib $(BINS)
	@B=$(B) tools/lint

doc: $(B)/bin/tessera
	@tools/gen-doc $(B)/bin/tessera

INSTALL_TO := $(DESTDIR)$(PREFIX)
LIB_TO     := $(DESTDIR)$(LIBDIR)
# Units are looked for here wherever libraries are.
UNITS_TO   := $(INSTALL_TO)/lib/systemd/system
MAN_TO      = $(INSTALL_TO)/share/man/man$(subst .,,$(suffix $1))/$(notdir $1)
MAN_PAGES  := $(wildcard man/*.[1-8])
install: lib $(BINS) $(ASCEND_LIB) $(CUDA_ALL) $(if $(MODEL_LIB),$(B)/installed/libtessera-model.so)
	install -d $(INSTALL_TO)/include/tessera $(LIB_TO)/pkgconfig
	install -m 644 include/tessera/*.h $(INSTALL_TO)/include/tessera/
	install -m 644 $(LIBA) $(LIB_TO)/
	install -m 755 $(LIBS_SO) $(LIB_TO)/libtessera.so.$(VERSION)
	ln -sf libtessera.so.$(VERSION) $(LIB_TO)/libtessera.so.$(SOMAJOR)
	ln -sf libtessera.so.$(SOMAJOR) $(LIB_TO)/libtessera.so
	$(if $(WITH_CUDA),install -m 755 $(B)/lib/libtessera-cuda.so $(LIB_TO)/)
	install -m 755 $(ASCEND_LIB) $(LIB_TO)/
	$(if $(MODEL_LIB),install -m 755 $(B)/installed/libtessera-model.so $(LIB_TO)/)
	$(if $(LLAMA_TAKE),install -d $(LIB_TO)/tessera && cp -P $(LLAMA_TAKE)/lib*.so.* $(LIB_TO)/tessera/)
	$(if $(wildcard $(LLAMA_DIR)/LICENSE),install -D -m 644 $(LLAMA_DIR)/LICENSE $(INSTALL_TO)/share/doc/tessera/LICENSE.llama.cpp)
	install -m 644 $(B)/tessera.pc $(LIB_TO)/pkgconfig/
	$(if $(BINS),install -d $(INSTALL_TO)/bin && install -m 755 $(BINS) $(INSTALL_TO)/bin/)
	$(foreach p,$(MAN_PAGES),install -D -m 644 $p $(call MAN_TO,$p) && \
	    sed -i 's/^\.Os$$/.Os Tessera $(VERSION)/' $(call MAN_TO,$p) &&) true
	$(foreach p,$(wildcard profiles/*.yaml),install -D -m 644 $p $(INSTALL_TO)/share/tessera/$p &&) true
	install -d $(INSTALL_TO)/share/tessera/watching
	install -m 644 docs/watching/grafana.json docs/watching/alerts.yaml $(INSTALL_TO)/share/tessera/watching/
	install -d $(UNITS_TO)
	sed 's|@PREFIX@|$(PREFIX)|' packaging/systemd/tesserad.service > $(UNITS_TO)/tesserad.service
	install -m 644 packaging/systemd/tesserad.socket $(UNITS_TO)/
	$(if $(DESTDIR),,$(if $(filter /usr/% /lib%,$(LIBDIR)),if [ "$$(id -u)" -eq 0 ]; then ldconfig; fi # or nothing finds the library))

# Also what only another build installs (CUDA, a model). Folders go unless somebody else's files are in them.
uninstall:
	rm -f $(addprefix $(INSTALL_TO)/,$(wildcard include/tessera/*.h) $(addprefix bin/,$(notdir $(BINS))))
	rm -f $(addprefix $(LIB_TO)/,libtessera.a libtessera.so libtessera.so.* libtessera-cuda.so libtessera-ascend.so libtessera-model.so pkgconfig/tessera.pc)
	rm -f $(foreach p,$(MAN_PAGES),$(call MAN_TO,$p)) $(UNITS_TO)/tesserad.service $(UNITS_TO)/tesserad.socket
	rm -f $(LIB_TO)/tessera/lib*.so.* $(addprefix $(INSTALL_TO)/share/,doc/tessera/LICENSE.llama.cpp $(addprefix tessera/,$(wildcard profiles/*.yaml) watching/grafana.json watching/alerts.yaml))
	for d in $(LIB_TO)/tessera $(addprefix $(INSTALL_TO)/,include/tessera share/tessera/profiles share/tessera/watching share/tessera share/doc/tessera); do \
	    if [ -d $$d ]; then rmdir --ignore-fail-on-non-empty $$d; fi; done

# Both need root, and a mirror of Debian; PACKAGES and CHECKS name some of them.
package:
	@tools/package $(PACKAGES)
check-packages:
	@tools/check-packages $(CHECKS)

clean:
	rm -rf $(B)

.SECONDARY:
-include $(shell find $(B)/obj $(B)/obj-fuzz -name '*.d' 2>/dev/null)
