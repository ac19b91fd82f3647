/* AMD's management library (libamd_smi.so) on a machine without a GPU, for tests.

   The file that RINGSIDE_AMD_SMI names is read at every call (tests/gpu/test_amd_smi.py writes it). It has lines of
   fields that tabs separate, in the order of PCI addresses:

       gpu     SOCKET  HIP_ID  ACCUMULATOR  CURRENT_W  AVERAGE_W    watts that are not known: -
       error   FUNCTION  STATUS                                     what a function returns

   Without the file the driver is not loaded. The Python binding looks up every function of the library when it is
   imported: those that are not here are compiled from its own list, and are not supported. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, DRIVER_NOT_LOADED = 34 };
enum { MAX_GPUS = 32, UNKNOWN_WATTS = 0xFFFF };

struct enumeration_info {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[256];
};
struct power_info {
    uint64_t socket_watts;
    uint32_t current_watts, average_watts;
    uint64_t gfx_millivolts, soc_millivolts, memory_millivolts;
    uint32_t limit_watts;
    uint64_t reserved[18];
};
struct gpu {
    unsigned int socket, hip_id, current_watts, average_watts;
    uint64_t accumulator;
};

static __thread struct gpu gpus[MAX_GPUS]; /* as they were at the thread's last call */
static __thread unsigned int n_gpus;

static unsigned int watts_of(const char *field) {
    return strcmp(field, "-") ? strtoul(field, NULL, 10) : UNKNOWN_WATTS;
}

/* Read the machine, and return what `function` has to return. */
static int enter(const char *function) {
    const char *path = getenv("RINGSIDE_AMD_SMI");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    int status = SUCCESS;
    if (!file)
        return DRIVER_NOT_LOADED;
    n_gpus = 0;
    while (fgets(line, sizeof line, file)) {
        char *rest = line, *field[6] = {0};
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < 6 && rest; i++)
            field[i] = strsep(&rest, "\t");
        if (!strcmp(field[0], "gpu"))
            gpus[n_gpus++] = (struct gpu){
                .socket = strtoul(field[1], NULL, 10),
                .hip_id = strtoul(field[2], NULL, 10),
                .accumulator = strtoull(field[3], NULL, 10),
                .current_watts = watts_of(field[4]),
                .average_watts = watts_of(field[5]),
            };
        else if (!strcmp(field[1], function))
            status = atoi(field[2]);
    }
    fclose(file);
    return status;
}

static struct gpu *gpu_of(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    return number >= 1 && number <= n_gpus ? &gpus[number - 1] : NULL;
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    return enter(__func__);
}

int amdsmi_shut_down(void) { return SUCCESS; }

/* A socket's handle is its number plus one. Without an array, only the count is asked for. */
int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    int status = enter(__func__);
    uint32_t n_sockets = 0;
    for (unsigned int i = 0; i < n_gpus; i++)
        if (gpus[i].socket + 1 > n_sockets)
            n_sockets = gpus[i].socket + 1;
    for (uint32_t i = 0; handles && i < *count; i++)
        handles[i] = (void *)(uintptr_t)(i + 1);
    *count = n_sockets;
    return status;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    int status = enter(__func__);
    uint32_t n_found = 0;
    for (unsigned int i = 0; i < n_gpus; i++)
        if (gpus[i].socket + 1 == (uintptr_t)socket) {
            if (handles)
                handles[n_found] = (void *)(uintptr_t)(i + 1);
            n_found++;
        }
    *count = n_found;
    return status;
}

int amdsmi_get_gpu_enumeration_info(void *handle, struct enumeration_info *info) {
    int status = enter(__func__);
    struct gpu *gpu = gpu_of(handle);
    memset(info, 0, sizeof *info);
    if (!gpu)
        return INVALID;
    info->hip_id = gpu->hip_id;
    return status;
}

int amdsmi_get_energy_count(void *handle, uint64_t *accumulator, float *microjoules, uint64_t *nanoseconds) {
    int status = enter(__func__);
    struct gpu *gpu = gpu_of(handle);
    if (!gpu)
        return INVALID;
    *accumulator = gpu->accumulator;
    *microjoules = 15.259f;
    *nanoseconds = 0;
    return status;
}

int amdsmi_get_power_info(void *handle, struct power_info *info) {
    int status = enter(__func__);
    struct gpu *gpu = gpu_of(handle);
    memset(info, 0, sizeof *info);
    if (!gpu)
        return INVALID;
    info->current_watts = gpu->current_watts;
    info->average_watts = gpu->average_watts;
    info->socket_watts = gpu->current_watts == UNKNOWN_WATTS ? gpu->average_watts : gpu->current_watts;
    return status;
}
