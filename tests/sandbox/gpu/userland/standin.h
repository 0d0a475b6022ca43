/* Copyright (c) 2026 kpro
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * STAND-IN: shared by the sandbox's libnvidia-ml and libcuda.
 * Declares what it needs by hand, so that no C headers are needed to compile it and the result runs on any glibc >= 2.33.
 * The "kernel" (tests/sandbox/gpu/kernel) writes STATE; the device nodes decide what is visible, as with a real driver.
 */
typedef unsigned long size_t;
typedef unsigned long long u64;
typedef unsigned int u32;
#define NULL ((void *)0)
#define EXPORT __attribute__((visibility("default")))
#ifndef STATE
#define STATE "/proc/driver/nvidia/kpro-standin"
#endif
#ifndef DEV
#define DEV "/dev"
#endif
#define MAX_GPUS 16

enum { E_PERM = 1, E_NOENT = 2, E_NXIO = 6, E_ACCES = 13 };
struct file_status { unsigned long dev, inode, links; u32 mode, uid, gid, pad; unsigned long rdev; long rest[12]; };

int open(const char *path, int flags, ...);
int close(int fd);
long read(int fd, void *buffer, size_t count);
int stat(const char *path, struct file_status *status);
int *__errno_location(void);
int snprintf(char *buffer, size_t size, const char *format, ...);
int strcmp(const char *a, const char *b);
int strncmp(const char *a, const char *b, size_t count);
size_t strlen(const char *text);
char *strchr(const char *text, int letter);
void *memcpy(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);
void *malloc(size_t size);
void free(void *memory);
int pause(void);
u64 strtoull(const char *text, char **end, int base);

/* Replaced in the compiled library by build-run; 32 bytes, so that a longer version fits. */
static volatile char own_version[32] = "@@KPRO-DRIVER-VERSION@@";

static char state_text[16384];

/* Reads the state afresh; 0 when the kernel module is not loaded. */
static int state_load(void)
{
	int fd = open(STATE, 0);
	long count, used = 0;

	state_text[0] = 0;
	if (fd < 0)
		return 0;
	while (used < (long)sizeof state_text - 1 && (count = read(fd, state_text + used, sizeof state_text - 1 - used)) > 0)
		used += count;
	state_text[used > 0 ? used : 0] = 0;
	close(fd);
	return used > 0;
}

/* The value of "key=" or of "gpuN.key="; out is always terminated. Returns 0 when absent. */
static int state_get(int gpu, const char *key, char *out, size_t size)
{
	char name[80];
	const char *line = state_text;
	size_t length, used = 0;

	if (gpu >= 0)
		snprintf(name, sizeof name, "gpu%d.%s=", gpu, key);
	else
		snprintf(name, sizeof name, "%s=", key);
	length = strlen(name);
	out[0] = 0;
	while (line && *line) {
		if (!strncmp(line, name, length)) {
			for (line += length; *line && *line != '\n' && used < size - 1; line++)
				out[used++] = *line;
			out[used] = 0;
			return 1;
		}
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return 0;
}

static u64 state_number(int gpu, const char *key, u64 fallback)
{
	char text[64];

	return state_get(gpu, key, text, sizeof text) ? strtoull(text, NULL, 0) : fallback;
}

/* What a program gets that opens the node: 0 (the real major answers), or an errno.
 * No kernel module answers in the sandbox, so ENXIO on the right major means "opened"; a wrong major means no device. */
static int node_error(const char *path, u32 major)
{
	struct file_status status;
	int fd;
	u32 real;

	memset(&status, 0, sizeof status);
	fd = open(path, 2);
	if (fd >= 0)
		close(fd);
	else if (*__errno_location() != E_NXIO)
		return *__errno_location();
	if (stat(path, &status))
		return *__errno_location();
	real = (u32)((status.rdev >> 8) & 0xfff);
	return (status.mode & 0170000) == 0020000 && real == major ? 0 : E_NXIO;
}

static int gpu_node_error(int gpu)
{
	char path[256];

	snprintf(path, sizeof path, DEV "/nvidia%u", (u32)state_number(gpu, "minor", gpu));
	return node_error(path, 195);
}

/* Fills list with the GPUs whose node is passed (readable or not) and returns their count. */
static int gpus_passed(int *list)
{
	int count = 0, gpu, error, all = (int)state_number(-1, "count", 0);

	for (gpu = 0; gpu < all && gpu < MAX_GPUS; gpu++) {
		if (state_number(gpu, "lost", 0))
			continue;
		error = gpu_node_error(gpu);
		if (!error || error == E_ACCES || error == E_PERM)
			list[count++] = gpu;
	}
	return count;
}

static int version_differs(void)
{
	char loaded[64];

	state_get(-1, "driver", loaded, sizeof loaded);
	return strcmp(loaded, (const char *)own_version);
}
