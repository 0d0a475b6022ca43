/* Copyright (c) 2026 kpro
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * STAND-IN for libnvidia-ml.so.1: the calls that the collection, nvidia-smi (stand-in) and nvidia-ml-py use, over the state of the stand-in kernel.
 */
#include "standin.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, MISMATCH = 18, UNKNOWN = 999 };

struct pci { char bus_id_legacy[16]; u32 domain, bus, device, device_id, subsystem_id; char bus_id[32]; };
struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct utilization { u32 gpu, memory; };
struct process { u32 pid; u64 used; u32 gpu_instance, compute_instance; };
struct device { int gpu; };

static struct device devices[MAX_GPUS];
static int visible[MAX_GPUS], visible_count, initialized;

#define GPU(handle) (((struct device *)(handle))->gpu)
#define NEED_INIT do { if (!initialized) return UNINITIALIZED; state_load(); } while (0)

static int text(const char *value, char *out, u32 size)
{
	if (strlen(value) + 1 > size)
		return INSUFFICIENT_SIZE;
	memcpy(out, value, strlen(value) + 1);
	return OK;
}

static int state_text_of(int gpu, const char *key, char *out, u32 size)
{
	char value[128];

	return state_get(gpu, key, value, sizeof value) ? text(value, out, size) : NOT_SUPPORTED;
}

EXPORT int nvmlInit_v2(void)
{
	int error, gpu;

	if (!state_load())
		return DRIVER_NOT_LOADED;
	error = node_error(DEV "/nvidiactl", 195);
	if (error == E_ACCES || error == E_PERM)
		return NO_PERMISSION;
	if (error)
		return DRIVER_NOT_LOADED;
	if (version_differs())
		return MISMATCH;
	error = (int)state_number(-1, "nvml_error", 0);
	if (error)
		return error;
	for (gpu = 0; gpu < MAX_GPUS; gpu++)
		devices[gpu].gpu = gpu;
	visible_count = gpus_passed(visible);
	initialized = 1;
	return OK;
}

EXPORT int nvmlInit(void) { return nvmlInit_v2(); }
EXPORT int nvmlInitWithFlags(u32 flags) { (void)flags; return nvmlInit_v2(); }
EXPORT int nvmlShutdown(void) { if (!initialized) return UNINITIALIZED; initialized = 0; return OK; }

EXPORT const char *nvmlErrorString(int code)
{
	switch (code) {
	case OK: return "The operation was successful";
	case UNINITIALIZED: return "Uninitialized";
	case INVALID_ARGUMENT: return "Invalid Argument";
	case NOT_SUPPORTED: return "Not Supported";
	case NO_PERMISSION: return "Insufficient Permissions";
	case NOT_FOUND: return "Not Found";
	case INSUFFICIENT_SIZE: return "Insufficient Size";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	case MISMATCH: return "Driver/library version mismatch";
	default: return "Unknown Error";
	}
}

EXPORT int nvmlSystemGetDriverVersion(char *out, u32 size) { NEED_INIT; return state_text_of(-1, "driver", out, size); }

EXPORT int nvmlSystemGetNVMLVersion(char *out, u32 size)
{
	char value[64];

	NEED_INIT;
	snprintf(value, sizeof value, "13.%s", (const char *)own_version);
	return text(value, out, size);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { NEED_INIT; *out = (int)state_number(-1, "cuda", 13000); return OK; }
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
EXPORT int nvmlDeviceGetCount_v2(u32 *out) { NEED_INIT; *out = visible_count; return OK; }
EXPORT int nvmlDeviceGetCount(u32 *out) { return nvmlDeviceGetCount_v2(out); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out)
{
	NEED_INIT;
	if (index >= (u32)visible_count)
		return INVALID_ARGUMENT;
	if (state_number(visible[index], "lost", 0))
		return GPU_IS_LOST;
	if (gpu_node_error(visible[index]))
		return NO_PERMISSION;
	*out = &devices[visible[index]];
	return OK;
}

EXPORT int nvmlDeviceGetHandleByIndex(u32 index, void **out) { return nvmlDeviceGetHandleByIndex_v2(index, out); }

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **out)
{
	char value[96];
	int index;

	NEED_INIT;
	for (index = 0; index < visible_count; index++)
		if (state_get(visible[index], "uuid", value, sizeof value) && !strcmp(value, uuid))
			return nvmlDeviceGetHandleByIndex_v2(index, out);
	return NOT_FOUND;
}

EXPORT int nvmlDeviceGetIndex(void *device, u32 *out)
{
	int index;

	NEED_INIT;
	for (index = 0; index < visible_count; index++)
		if (visible[index] == GPU(device)) {
			*out = index;
			return OK;
		}
	return NOT_FOUND;
}

EXPORT int nvmlDeviceGetMinorNumber(void *device, u32 *out) { NEED_INIT; *out = (u32)state_number(GPU(device), "minor", GPU(device)); return OK; }
EXPORT int nvmlDeviceGetName(void *device, char *out, u32 size) { NEED_INIT; return state_text_of(GPU(device), "name", out, size); }
EXPORT int nvmlDeviceGetUUID(void *device, char *out, u32 size) { NEED_INIT; return state_text_of(GPU(device), "uuid", out, size); }
EXPORT int nvmlDeviceGetSerial(void *device, char *out, u32 size) { NEED_INIT; return state_text_of(GPU(device), "serial", out, size); }

EXPORT int nvmlDeviceGetPciInfo_v3(void *device, struct pci *out)
{
	char bus_id[32];

	NEED_INIT;
	memset(out, 0, sizeof *out);
	if (!state_get(GPU(device), "bus_id", bus_id, sizeof bus_id))
		return NOT_FOUND;
	snprintf(out->bus_id_legacy, sizeof out->bus_id_legacy, "%s", bus_id);
	snprintf(out->bus_id, sizeof out->bus_id, "0000%s", bus_id);
	out->domain = (u32)strtoull(bus_id, NULL, 16);
	out->bus = (u32)strtoull(bus_id + 5, NULL, 16);
	out->device = (u32)strtoull(bus_id + 8, NULL, 16);
	out->device_id = (u32)state_number(GPU(device), "pci_id", 0x223010de);
	return OK;
}

EXPORT int nvmlDeviceGetPciInfo_v2(void *device, struct pci *out) { return nvmlDeviceGetPciInfo_v3(device, out); }

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
	NEED_INIT;
	out->total = state_number(GPU(device), "memory_mib", 0) << 20;
	out->used = state_number(GPU(device), "used_mib", 0) << 20;
	out->free = out->total - out->used;
	return OK;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out)
{
	NEED_INIT;
	out->total = state_number(GPU(device), "memory_mib", 0) << 20;
	out->reserved = state_number(GPU(device), "reserved_mib", 536) << 20;
	out->used = state_number(GPU(device), "used_mib", 0) << 20;
	out->free = out->total - out->used - out->reserved;
	return OK;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
	char value[16];
	char *rest;

	NEED_INIT;
	if (!state_get(GPU(device), "compute_capability", value, sizeof value))
		return NOT_SUPPORTED;
	*major = (int)strtoull(value, &rest, 10);
	*minor = *rest == '.' ? (int)strtoull(rest + 1, NULL, 10) : 0;
	return OK;
}

EXPORT int nvmlDeviceGetPersistenceMode(void *device, int *out) { NEED_INIT; (void)device; *out = (int)state_number(-1, "persistence", 0); return OK; }

EXPORT int nvmlDeviceGetEccMode(void *device, int *current, int *pending)
{
	NEED_INIT;
	*current = *pending = (int)state_number(GPU(device), "ecc", 0);
	return OK;
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, u32 *out) { NEED_INIT; (void)sensor; *out = (u32)state_number(GPU(device), "temperature", 41); return OK; }
EXPORT int nvmlDeviceGetPowerUsage(void *device, u32 *out) { NEED_INIT; *out = (u32)state_number(GPU(device), "power_mw", 21500); return OK; }
EXPORT int nvmlDeviceGetPowerManagementLimit(void *device, u32 *out) { NEED_INIT; *out = (u32)state_number(GPU(device), "power_limit_mw", 300000); return OK; }
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, u32 *out) { return nvmlDeviceGetPowerManagementLimit(device, out); }
EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(void *device, u32 *out) { NEED_INIT; (void)device; *out = 300000; return OK; }

EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out)
{
	NEED_INIT;
	out->gpu = (u32)state_number(GPU(device), "utilization", 0);
	out->memory = 0;
	return OK;
}

/* NVLink or PCIe: 0 same board ... 40 another CPU node, as nvmlGpuTopologyLevel_t. */
EXPORT int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, int *out)
{
	NEED_INIT;
	*out = GPU(one) == GPU(other) ? 0 : (int)state_number(-1, "topology_level", 30);
	return OK;
}

EXPORT int nvmlDeviceGetNvLinkState(void *device, u32 link, int *out)
{
	NEED_INIT;
	(void)device;
	if (link >= state_number(-1, "nvlinks", 0))
		return state_number(-1, "nvlinks", 0) ? INVALID_ARGUMENT : NOT_SUPPORTED;
	*out = 1;
	return OK;
}

/* Two bridged GPUs: every link of one leads to the other. */
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, u32 link, struct pci *out)
{
	int active, index, error = nvmlDeviceGetNvLinkState(device, link, &active);

	if (error)
		return error;
	for (index = 0; index < visible_count; index++)
		if (visible[index] != GPU(device))
			return nvmlDeviceGetPciInfo_v3(&devices[visible[index]], out);
	return NOT_FOUND;
}

/* Programs on the GPU, with the PIDs of the node: NVML knows no PID namespaces. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, u32 *count, struct process *out)
{
	char key[32];
	u32 all, index;

	NEED_INIT;
	all = (u32)state_number(GPU(device), "processes", 0);
	if (*count < all || (all && !out)) {
		*count = all;
		return INSUFFICIENT_SIZE;
	}
	*count = all;
	for (index = 0; index < all; index++) {
		memset(&out[index], 0, sizeof *out);
		snprintf(key, sizeof key, "process%u.pid", index);
		out[index].pid = (u32)state_number(GPU(device), key, 0);
		snprintf(key, sizeof key, "process%u.mib", index);
		out[index].used = state_number(GPU(device), key, 0) << 20;
		out[index].gpu_instance = out[index].compute_instance = ~0u;
	}
	return OK;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, u32 *count, struct process *out) { NEED_INIT; (void)device; (void)out; *count = 0; return OK; }
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, u32 *count, struct process *out) { NEED_INIT; (void)device; (void)out; *count = 0; return OK; }
EXPORT int nvmlDeviceGetMigMode(void *device, u32 *current, u32 *pending) { NEED_INIT; (void)device; (void)current; (void)pending; return NOT_SUPPORTED; }
