/* locking.h - page-locks host memory for a device in the background. A device that needs locked
 * memory can copy from the pages of a mapping once they are registered with it. Registering takes
 * about a second for every few GB, so a thread does it piece by piece, in address order: what is
 * below a watermark is locked, and the rest is copied through other memory until it is.
 *
 * Locked memory is resident: a mapping that was reserved and never touched takes all of its bytes.
 *
 * Threads: open and close from one thread; done and wait from any.
 * Memory:  the mapping and the device stay until close has returned.
 * Errors:  a piece that cannot be locked is one warning in the log, and the last: what follows it
 *          stays unlocked.
 */
#ifndef TSRI_LOCKING_H
#define TSRI_LOCKING_H

#include "device/device.h"

/* Pieces begin at multiples of this in the mapping. A device may refuse a copy that is not wholly
 * in one piece; one that does not cross such a multiple is. The pool of a cache begins at such an
 * address. */
#define TSRI_LOCKING_ALIGN ((size_t)2 << 20)

struct tsri_locking;
/* Starts to lock [data, + bytes), whole pages of the machine. Pieces are multiples of unit_bytes, a
 * power of two, so that none ends within a unit. On a device without TSR_DEVICE_NEEDS_LOCK
 * everything counts as locked. */
TSR_MUST int tsri_locking_open(struct tsri_locking **out, struct tsri_device *device, void *data,
                               size_t bytes, size_t unit_bytes);
/* Stops, and unlocks what was locked; nothing may be queued on the device that uses it. Waits for
 * the piece that is being locked. Accepts NULL. */
void tsri_locking_close(struct tsri_locking *l);
/* Bytes from the start of the mapping that are locked; only grows. NULL: 0. */
size_t tsri_locking_done(const struct tsri_locking *l);
/* Waits until so many bytes (at most all) are locked. False: not by then (tsri_now_ns), or never,
 * because a piece before them failed. */
bool tsri_locking_wait(struct tsri_locking *l, size_t bytes, uint64_t until_ns);

#endif
