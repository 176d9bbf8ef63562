/* blend.h - answering from cached text: what of a prompt is reused, what is computed, and in which
 * order, over any executor.
 *
 * Threads: see <tessera/model.h> and <tessera/blend.h>.
 * Memory:  embedded structs have init and fini; what they point to is said on them.
 * Errors:  a tier that fails costs the tokens it had, never the answer.
 */
#ifndef TSRI_BLEND_H
#define TSRI_BLEND_H

#include "base/base.h"
#include "cache/cache.h"
#include "device/device.h"

#include <tessera/model.h>

#endif
