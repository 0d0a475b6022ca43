/* Copyright (c) 2026 kpro
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * STAND-IN for libcuda.so.1: enough of the driver interface to initialise, list devices and check copies between GPUs.
 * "GPU memory" is memory of the process. State "p2p": ok | none | corrupt (copies report success and change nothing, as with dropped peer writes) | hang.
 */
#include "standin.h"

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       PEER_ACCESS_UNSUPPORTED = 217, OPERATING_SYSTEM = 304, NOT_FOUND = 500, MISMATCH = 803, UNKNOWN = 999 };
enum { ATTRIBUTE_CC_MAJOR = 75, ATTRIBUTE_CC_MINOR = 76, ATTRIBUTE_PCI_BUS = 33, ATTRIBUTE_PCI_DEVICE = 34, ATTRIBUTE_PCI_DOMAIN = 50 };

struct context { int index; };
struct block { struct block *next; int index; size_t size; };

static int visible[MAX_GPUS], visible_count, initialized;
static struct context contexts[MAX_GPUS], *current;
static struct block *blocks;
static u64 used_bytes[MAX_GPUS];

#define NEED_INIT do { if (!initialized) return NOT_INITIALIZED; } while (0)
#define NEED_DEVICE(index) do { NEED_INIT; if ((index) < 0 || (index) >= visible_count) return INVALID_DEVICE; } while (0)

static int usable(int *list)
{
	int passed[MAX_GPUS], count = gpus_passed(passed), index, good = 0;

	for (index = 0; index < count; index++)
		if (!gpu_node_error(passed[index]))
			list[good++] = passed[index];
	return good;
}

EXPORT int cuInit(u32 flags)
{
	u32 uvm_major;
	int index;

	if (flags)
		return INVALID_VALUE;
	if (!state_load() || node_error(DEV "/nvidiactl", 195))
		return NO_DEVICE;
	if (version_differs())
		return MISMATCH;
	index = (int)state_number(-1, "cuda_error", 0);
	if (index)
		return index;
	uvm_major = (u32)state_number(-1, "uvm_major", 0);
	if (!uvm_major || node_error(DEV "/nvidia-uvm", uvm_major))
		return UNKNOWN;
	if (node_error(DEV "/nvidia-uvm-tools", uvm_major))
		return OPERATING_SYSTEM;
	visible_count = usable(visible);
	if (!visible_count)
		return NO_DEVICE;
	for (index = 0; index < MAX_GPUS; index++)
		contexts[index].index = index;
	initialized = 1;
	return OK;
}

static const struct { int code; const char *name, *text; } errors[] = {
	{OK, "CUDA_SUCCESS", "no error"},
	{INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	{OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
	{NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
	{UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int error_index(int code)
{
	int index;

	for (index = 0; index < (int)(sizeof errors / sizeof *errors); index++)
		if (errors[index].code == code)
			return index;
	return -1;
}

EXPORT int cuGetErrorName(int code, const char **out) { int i = error_index(code); *out = i < 0 ? NULL : errors[i].name; return i < 0 ? INVALID_VALUE : OK; }
EXPORT int cuGetErrorString(int code, const char **out) { int i = error_index(code); *out = i < 0 ? NULL : errors[i].text; return i < 0 ? INVALID_VALUE : OK; }
EXPORT int cuDriverGetVersion(int *out) { state_load(); *out = (int)state_number(-1, "cuda", 13000); return OK; }
EXPORT int cuDeviceGetCount(int *out) { NEED_INIT; *out = visible_count; return OK; }
EXPORT int cuDeviceGet(int *out, int ordinal) { NEED_DEVICE(ordinal); *out = ordinal; return OK; }

EXPORT int cuDeviceGetName(char *out, int size, int device)
{
	NEED_DEVICE(device);
	return size > 0 && state_get(visible[device], "name", out, size) ? OK : INVALID_VALUE;
}

static int hex_digit(char letter) { return letter <= '9' ? letter - '0' : (letter | 32) - 'a' + 10; }

EXPORT int cuDeviceGetUuid_v2(unsigned char *out, int device)
{
	char value[64];
	const char *at;
	int count = 0;

	NEED_DEVICE(device);
	if (!state_get(visible[device], "uuid", value, sizeof value))
		return INVALID_VALUE;
	for (at = value + 4; *at && at[1] && count < 16; at++)
		if (*at != '-') {
			out[count++] = (unsigned char)(hex_digit(*at) << 4 | hex_digit(at[1]));
			at++;
		}
	return count == 16 ? OK : INVALID_VALUE;
}

EXPORT int cuDeviceGetUuid(unsigned char *out, int device) { return cuDeviceGetUuid_v2(out, device); }

EXPORT int cuDeviceGetPCIBusId(char *out, int size, int device)
{
	NEED_DEVICE(device);
	return size > 0 && state_get(visible[device], "bus_id", out, size) ? OK : INVALID_VALUE;
}

EXPORT int cuDeviceTotalMem_v2(size_t *out, int device)
{
	NEED_DEVICE(device);
	*out = (state_number(visible[device], "memory_mib", 0) - state_number(visible[device], "reserved_mib", 536)) << 20;
	return OK;
}

EXPORT int cuDeviceGetAttribute(int *out, int attribute, int device)
{
	char value[32];
	char *rest;
	u64 major;

	NEED_DEVICE(device);
	if (attribute == ATTRIBUTE_CC_MAJOR || attribute == ATTRIBUTE_CC_MINOR) {
		state_get(visible[device], "compute_capability", value, sizeof value);
		major = strtoull(value, &rest, 10);
		*out = attribute == ATTRIBUTE_CC_MAJOR ? (int)major : (int)(*rest == '.' ? strtoull(rest + 1, NULL, 10) : 0);
		return OK;
	}
	state_get(visible[device], "bus_id", value, sizeof value);
	if (attribute == ATTRIBUTE_PCI_DOMAIN)
		*out = (int)strtoull(value, NULL, 16);
	else if (attribute == ATTRIBUTE_PCI_BUS)
		*out = (int)strtoull(value + 5, NULL, 16);
	else if (attribute == ATTRIBUTE_PCI_DEVICE)
		*out = (int)strtoull(value + 8, NULL, 16);
	else
		return INVALID_VALUE;
	return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **out, int device) { NEED_DEVICE(device); *out = &contexts[device]; return OK; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int device) { NEED_DEVICE(device); return OK; }
EXPORT int cuCtxSetCurrent(void *context) { NEED_INIT; current = context; return OK; }
EXPORT int cuCtxGetDevice(int *out) { NEED_INIT; if (!current) return INVALID_CONTEXT; *out = current->index; return OK; }
EXPORT int cuCtxSynchronize(void) { NEED_INIT; return current ? OK : INVALID_CONTEXT; }

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
	int error;
	u64 elsewhere;

	NEED_INIT;
	if (!current)
		return INVALID_CONTEXT;
	state_load();
	error = cuDeviceTotalMem_v2(total_bytes, current->index);
	elsewhere = (state_number(visible[current->index], "used_mib", 0) << 20) + used_bytes[current->index];
	*free_bytes = *total_bytes > elsewhere ? *total_bytes - elsewhere : 0;
	return error;
}

EXPORT int cuMemAlloc_v2(u64 *out, size_t size)
{
	size_t free_bytes, total_bytes;
	struct block *block;

	NEED_INIT;
	if (!current)
		return INVALID_CONTEXT;
	cuMemGetInfo_v2(&free_bytes, &total_bytes);
	if (size > free_bytes)
		return OUT_OF_MEMORY;
	block = malloc(sizeof *block + size);
	if (!block)
		return OUT_OF_MEMORY;
	block->next = blocks;
	block->index = current->index;
	block->size = size;
	blocks = block;
	used_bytes[block->index] += size;
	*out = (u64)(block + 1);
	memset(block + 1, 0, size);
	return OK;
}

EXPORT int cuMemFree_v2(u64 address)
{
	struct block **at, *block;

	NEED_INIT;
	for (at = &blocks; (block = *at); at = &block->next)
		if ((u64)(block + 1) == address) {
			*at = block->next;
			used_bytes[block->index] -= block->size;
			free(block);
			return OK;
		}
	return INVALID_VALUE;
}

static struct block *holder(u64 address, size_t size)
{
	struct block *block;

	for (block = blocks; block; block = block->next)
		if (address >= (u64)(block + 1) && address + size <= (u64)(block + 1) + block->size)
			return block;
	return NULL;
}

EXPORT int cuMemsetD8_v2(u64 to, unsigned char value, size_t size)
{
	NEED_INIT;
	if (!holder(to, size))
		return INVALID_VALUE;
	memset((void *)to, value, size);
	return OK;
}

EXPORT int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size)
{
	NEED_INIT;
	if (!holder(to, size))
		return INVALID_VALUE;
	memcpy((void *)to, from, size);
	return OK;
}

EXPORT int cuMemcpyDtoH_v2(void *to, u64 from, size_t size)
{
	NEED_INIT;
	if (!holder(from, size))
		return INVALID_VALUE;
	memcpy(to, (const void *)from, size);
	return OK;
}

static int p2p_is(const char *word)
{
	char value[32];

	state_load();
	if (!state_get(-1, "p2p", value, sizeof value))
		return !strcmp(word, "ok");
	return !strcmp(value, word);
}

EXPORT int cuDeviceCanAccessPeer(int *out, int device, int peer)
{
	NEED_DEVICE(device);
	NEED_DEVICE(peer);
	*out = device != peer && !p2p_is("none");
	return OK;
}

EXPORT int cuCtxEnablePeerAccess(void *context, u32 flags)
{
	NEED_INIT;
	(void)flags;
	if (!current || !context)
		return INVALID_CONTEXT;
	return p2p_is("none") ? PEER_ACCESS_UNSUPPORTED : OK;
}

EXPORT int cuCtxDisablePeerAccess(void *context) { NEED_INIT; return context ? OK : INVALID_CONTEXT; }

EXPORT int cuMemcpyPeer(u64 to, void *to_context, u64 from, void *from_context, size_t size)
{
	struct block *target, *source;

	NEED_INIT;
	target = holder(to, size);
	source = holder(from, size);
	if (!target || !source || !to_context || !from_context)
		return INVALID_VALUE;
	while (target->index != source->index && p2p_is("hang"))
		pause();
	if (target->index != source->index && p2p_is("corrupt"))
		return OK;
	memcpy((void *)to, (const void *)from, size);
	return OK;
}
