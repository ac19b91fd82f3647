/* NVIDIA's management library (libnvidia-ml.so.1) on a machine without a GPU, for tests.

   The file that RINGSIDE_NVML names is read at every call, so that a test can change the machine while others read it
   (tests/gpu/nvml.py writes it). It has lines of fields that tabs separate:

       driver  580.65.06
       since   SECONDS                                  counters grow at the devices' power since then (CLOCK_MONOTONIC)
       gpu     UUID  NAME  BYTES  MILLIJOULES  MILLIWATTS  MODE    mode of MIG: on, off, or - if the device has none
       mig     UUID  NAME  BYTES                        an instance of the device above
       error   FUNCTION  CODE                           what a function, or each one (*), returns: of the device above,
                                                        or of all if no device is above; the code hang never returns

   Without the file no driver is loaded. Only functions that the Python binding, PyTorch or a person at a prompt would
   call on the way to energy are here; the binding turns any other one into NVMLError_FunctionNotFound. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    HANG = -1,
};
enum { MAX_DEVICES = 128, MAX_ERRORS = 64, TEXT = 96, NEW_VALUES_PER_S = 10 };

struct device {
    char uuid[TEXT], name[TEXT];
    unsigned long long bytes, millijoules;
    unsigned int milliwatts;
    int has_mig, is_divided; /* a GPU */
    int parent;              /* of an instance; -1 for a GPU */
};
struct error {
    char function[TEXT];
    int code, device; /* -1: all devices */
};
struct machine {
    char driver[TEXT];
    double since;
    int n_devices, n_errors;
    struct device devices[MAX_DEVICES];
    struct error errors[MAX_ERRORS];
};
struct memory {
    unsigned long long total, free, used;
};

static int n_users; /* calls of nvmlInit without nvmlShutdown */

static int read_machine(struct machine *machine) {
    const char *path = getenv("RINGSIDE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    int gpu = -1;
    if (!file)
        return DRIVER_NOT_LOADED;
    memset(machine, 0, sizeof *machine);
    while (fgets(line, sizeof line, file)) {
        char *rest = line, *field[8] = {0};
        line[strcspn(line, "\n")] = 0;
        for (int i = 0; i < 8 && rest; i++)
            field[i] = strsep(&rest, "\t");
        if (!strcmp(field[0], "driver")) {
            snprintf(machine->driver, TEXT, "%s", field[1]);
        } else if (!strcmp(field[0], "since")) {
            machine->since = atof(field[1]);
        } else if (!strcmp(field[0], "error")) {
            struct error *error = &machine->errors[machine->n_errors++];
            snprintf(error->function, TEXT, "%s", field[1]);
            error->code = strcmp(field[2], "hang") ? atoi(field[2]) : HANG;
            error->device = machine->n_devices - 1;
        } else {
            struct device *device = &machine->devices[machine->n_devices++];
            snprintf(device->uuid, TEXT, "%s", field[1]);
            snprintf(device->name, TEXT, "%s", field[2]);
            device->bytes = strtoull(field[3], NULL, 10);
            device->parent = -1;
            if (!strcmp(field[0], "mig")) {
                device->parent = gpu;
            } else {
                gpu = machine->n_devices - 1;
                device->millijoules = strtoull(field[4], NULL, 10);
                device->milliwatts = strtoul(field[5], NULL, 10);
                device->has_mig = strcmp(field[6], "-") != 0;
                device->is_divided = !strcmp(field[6], "on");
            }
        }
    }
    fclose(file);
    return SUCCESS;
}

/* Read the machine, and return what `function` has to return of a device, or of none (-1). */
static int enter(struct machine *machine, const char *function, int device) {
    int code = read_machine(machine);
    if (code == SUCCESS && device >= machine->n_devices)
        return INVALID_ARGUMENT;
    for (int i = 0; code == SUCCESS && i < machine->n_errors; i++) {
        struct error *error = &machine->errors[i];
        int is_meant = !strcmp(error->function, "*") || !strcmp(error->function, function);
        if (is_meant && (error->device == -1 || error->device == device))
            code = error->code;
    }
    while (code == HANG)
        pause();
    return code == SUCCESS && !n_users ? UNINITIALIZED : code;
}

static int number_of(void *handle) { return (int)((char *)handle - (char *)0) - 1; }
static void *handle_of(int number) { return (char *)0 + number + 1; }

static int copy_text(char *text, unsigned int length, const char *value) {
    return (size_t)snprintf(text, length, "%s", value) < length ? SUCCESS : INSUFFICIENT_SIZE;
}

#define ENTER(handle)                                                                                                  \
    struct machine machine;                                                                                            \
    int number = number_of(handle), code = number < 0 ? INVALID_ARGUMENT : enter(&machine, __func__, number);          \
    struct device *device = &machine.devices[number < 0 ? 0 : number];                                                 \
    if (code != SUCCESS)                                                                                               \
        return code

int nvmlInitWithFlags(unsigned int flags) {
    struct machine machine;
    n_users++;
    int code = enter(&machine, __func__, -1);
    (void)flags;
    if (code != SUCCESS)
        n_users--;
    return code;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    if (!n_users)
        return UNINITIALIZED;
    n_users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    struct machine machine;
    int code = enter(&machine, __func__, -1);
    return code == SUCCESS ? copy_text(version, length, machine.driver) : code;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    struct machine machine;
    int code = enter(&machine, __func__, -1);
    *count = 0;
    for (int i = 0; code == SUCCESS && i < machine.n_devices; i++)
        *count += machine.devices[i].parent == -1;
    return code;
}
int nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

/* Instances of MIG have no index among the GPUs. */
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    struct machine machine;
    int code = read_machine(&machine), place = -1;
    for (int i = 0; code == SUCCESS && i < machine.n_devices && place == -1; i++)
        if (machine.devices[i].parent == -1 && index-- == 0)
            place = i;
    code = enter(&machine, __func__, place);
    if (code == SUCCESS && place == -1)
        return INVALID_ARGUMENT;
    *handle = handle_of(place);
    return code;
}
int nvmlDeviceGetHandleByIndex(unsigned int index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    struct machine machine;
    int code = read_machine(&machine), place = -1;
    for (int i = 0; code == SUCCESS && i < machine.n_devices; i++)
        if (!strcmp(machine.devices[i].uuid, uuid))
            place = i;
    code = enter(&machine, __func__, place);
    if (code == SUCCESS && place == -1)
        return NOT_FOUND;
    *handle = handle_of(place);
    return code;
}

int nvmlDeviceGetIndex(void *handle, unsigned int *index) {
    ENTER(handle);
    *index = 0;
    for (int i = 0; i < number; i++)
        *index += machine.devices[i].parent == device->parent;
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length) {
    ENTER(handle);
    return copy_text(uuid, length, device->uuid);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length) {
    ENTER(handle);
    return copy_text(name, length, device->name);
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    ENTER(handle);
    *memory = (struct memory){device->bytes, device->bytes, 0};
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
    ENTER(handle);
    *milliwatts = device->milliwatts;
    return device->parent == -1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    ENTER(handle);
    *millijoules = device->millijoules;
    if (machine.since > 0) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        double seconds = now.tv_sec + now.tv_nsec / 1e9 - machine.since;
        *millijoules += (unsigned long long)(seconds * NEW_VALUES_PER_S) * device->milliwatts / NEW_VALUES_PER_S;
    }
    return device->parent == -1 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending) {
    ENTER(handle);
    *current = *pending = device->is_divided;
    return device->has_mig ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned int *is_instance) {
    ENTER(handle);
    *is_instance = device->parent != -1;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **gpu) {
    ENTER(handle);
    *gpu = handle_of(device->parent);
    return device->parent == -1 ? INVALID_ARGUMENT : SUCCESS;
}
