/* SPDX-License-Identifier: Apache-2.0 */
/* A measurement is a job that N threads, each pinned to a CPU, start together behind a barrier;
 * its rate is the work of all over the time from the first start to the last end. The median of
 * five such runs counts: shared machines have bad moments and, seldom, lucky ones. */
#include "bench/machine.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench/report.h"
#include "common/clock.h"

#define N_RUNS 5
#define N_THREADS_MAX 64
#define COMPUTE_ROUNDS 4000000u
#define HUGE_PAGE ((size_t)2 << 20)

typedef struct job {
    const bt_peak_loop *loop; /* compute, or */
    const bt_peak_set *set;   /* read `source`, or */
    uint8_t *target;          /* copy source to target */
    uint8_t *source;
    size_t n_bytes;
    unsigned passes;
    unsigned cpu;
    pthread_barrier_t *barrier;
    int64_t began_ns, ended_ns;
    uint64_t kept; /* so that the work is not optimized away */
} job;

/* ---- description ---- */

static void read_cpu(char *out, size_t n)
{
    char line[512];
    char model_name[96] = "unknown CPU";
    int family = 0;
    int model = 0;
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL && line[0] != '\n') {
        (void)sscanf(line, "model name : %95[^\n]", model_name);
        (void)sscanf(line, "cpu family : %d", &family);
        (void)sscanf(line, "model : %d", &model);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    (void)snprintf(out, n, "%s (family %d, model %d)", model_name, family, model);
}

void bt_machine_describe(bt_machine *out)
{
    *out = (bt_machine){.n_cpus = 1};
    read_cpu(out->cpu, sizeof out->cpu);
    struct utsname os;
    if (uname(&os) == 0) {
        (void)snprintf(out->os, sizeof out->os, "%.60s %.60s", os.sysname, os.release);
    }
    (void)snprintf(out->compiler, sizeof out->compiler, "gcc %d.%d", __GNUC__, __GNUC_MINOR__);
    (void)snprintf(out->peak, sizeof out->peak, "%s", bt_peak_best()->name);
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) {
        out->n_cpus = (unsigned)CPU_COUNT(&cpus);
    }
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    out->l3_bytes = l3 > 0 ? (uint64_t)l3 : 0;
    out->ram_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- threads ---- */

/* The idx-th CPU that this process may use. */
static unsigned nth_cpu(unsigned idx)
{
    cpu_set_t cpus;
    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) {
        return idx;
    }
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &cpus) && idx-- == 0) {
            return cpu;
        }
    }
    return 0;
}

static void *run_job(void *arg)
{
    job *j = arg;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(j->cpu, &one);
    (void)pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    (void)pthread_barrier_wait(j->barrier);
    j->began_ns = bt_clock_now_ns();
    for (unsigned pass = 0; pass < j->passes; pass++) {
        if (j->loop != NULL) {
            j->kept += j->loop->run(COMPUTE_ROUNDS);
        } else if (j->set != NULL) {
            j->kept += j->set->read(j->source, j->n_bytes);
        } else {
            memcpy(j->target, j->source, j->n_bytes);
            j->kept += j->target[pass % j->n_bytes];
        }
    }
    j->ended_ns = bt_clock_now_ns();
    return NULL;
}

/* One run; nanoseconds from the first start to the last end, 0 when threads can't be had. */
static int64_t run_jobs(job *jobs, unsigned n)
{
    pthread_t threads[N_THREADS_MAX];
    pthread_barrier_t barrier;
    if (pthread_barrier_init(&barrier, NULL, n) != 0) {
        return 0;
    }
    for (unsigned i = 0; i < n; i++) {
        jobs[i].barrier = &barrier;
        jobs[i].cpu = nth_cpu(i);
        if (pthread_create(&threads[i], NULL, run_job, &jobs[i]) != 0) {
            abort(); /* the others wait at the barrier for ever */
        }
    }
    int64_t began = INT64_MAX;
    int64_t ended = 0;
    for (unsigned i = 0; i < n; i++) {
        (void)pthread_join(threads[i], NULL);
        began = jobs[i].began_ns < began ? jobs[i].began_ns : began;
        ended = jobs[i].ended_ns > ended ? jobs[i].ended_ns : ended;
    }
    (void)pthread_barrier_destroy(&barrier);
    return ended - began;
}

/* work_each: units that one thread does in one run. */
static double median_rate(job *jobs, unsigned n, double work_each)
{
    double rates[N_RUNS];
    for (int run = 0; run < N_RUNS; run++) {
        const int64_t ns = run_jobs(jobs, n);
        rates[run] = ns > 0 ? work_each * n * 1e9 / (double)ns : 0;
    }
    return bt_report_median(rates, N_RUNS);
}

static bool threads_fit(unsigned n_threads)
{
    return n_threads > 0 && n_threads <= N_THREADS_MAX;
}

/* ---- memory ---- */

static uint8_t *take_memory(size_t n_bytes, uint8_t fill)
{
    uint8_t *bytes = aligned_alloc(HUGE_PAGE, bt_align_up(n_bytes, HUGE_PAGE));
    if (bytes != NULL) {
        (void)madvise(bytes, n_bytes, MADV_HUGEPAGE);
        memset(bytes, fill, n_bytes);
    }
    return bytes;
}

static bt_status memory_rate(unsigned n_threads, size_t bytes_each, bool copy, double *rate)
{
    const size_t n_bytes = bt_align_up(bytes_each, 512);
    if (!threads_fit(n_threads) || bytes_each == 0) {
        return BT_EINVAL;
    }
    job jobs[N_THREADS_MAX] = {{0}};
    bt_status status = BT_OK;
    /* Small ones are read often enough that a run takes milliseconds. */
    const unsigned passes = (unsigned)(1 + ((size_t)256 << 20) / n_bytes);
    for (unsigned i = 0; i < n_threads; i++) {
        jobs[i] = (job){.set = copy ? NULL : bt_peak_best(), .n_bytes = n_bytes, .passes = passes};
        jobs[i].source = take_memory(n_bytes, (uint8_t)(i + 1));
        jobs[i].target = copy ? take_memory(n_bytes, 0) : NULL;
        if (jobs[i].source == NULL || (copy && jobs[i].target == NULL)) {
            status = BT_ENOMEM;
        }
    }
    if (status == BT_OK) {
        *rate = median_rate(jobs, n_threads, (double)n_bytes * passes);
    }
    for (unsigned i = 0; i < n_threads; i++) {
        free(jobs[i].source);
        free(jobs[i].target);
    }
    return status;
}

bt_status bt_machine_read_rate(unsigned n_threads, size_t bytes_each, double *bytes)
{
    return memory_rate(n_threads, bytes_each, false, bytes);
}

bt_status bt_machine_copy_rate(unsigned n_threads, size_t bytes_each, double *bytes)
{
    return memory_rate(n_threads, bytes_each, true, bytes);
}

/* ---- compute ---- */

bt_status bt_machine_compute_rate(unsigned n_threads, const bt_peak_loop *loop, double *ops)
{
    if (!threads_fit(n_threads)) {
        return BT_EINVAL;
    }
    if (loop->run == NULL) {
        *ops = 0;
        return BT_OK;
    }
    job jobs[N_THREADS_MAX] = {{0}};
    for (unsigned i = 0; i < n_threads; i++) {
        jobs[i] = (job){.loop = loop, .passes = 1};
    }
    *ops = median_rate(jobs, n_threads, (double)loop->ops_per_round * COMPUTE_ROUNDS);
    return BT_OK;
}

/* ---- loopback ---- */

typedef struct sender {
    int fd;
    size_t message_bytes;
    size_t total_bytes;
    bool ok;
} sender;

static void *send_all(void *arg)
{
    sender *s = arg;
    uint8_t *message = calloc(1, s->message_bytes);
    size_t sent = 0;
    while (message != NULL && sent < s->total_bytes) {
        const size_t left = bt_size_min(s->message_bytes, s->total_bytes - sent);
        const ssize_t n = send(s->fd, message, left, MSG_NOSIGNAL);
        if (n <= 0) {
            break;
        }
        sent += (size_t)n;
    }
    s->ok = sent == s->total_bytes;
    (void)shutdown(s->fd, SHUT_WR);
    free(message);
    return NULL;
}

/* A connected pair on 127.0.0.1; false, and nothing is open, on failure. */
static bool open_pair(int fds[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[1] = -1;
    if (listener >= 0 && fds[0] >= 0 && bind(listener, (void *)&address, n) == 0 &&
        listen(listener, 1) == 0 && getsockname(listener, (void *)&address, &n) == 0 &&
        connect(fds[0], (void *)&address, n) == 0) {
        fds[1] = accept(listener, NULL, NULL);
    }
    if (listener >= 0) {
        (void)close(listener);
    }
    if (fds[1] < 0 && fds[0] >= 0) {
        (void)close(fds[0]);
    }
    return fds[1] >= 0;
}

static double receive_rate(int fds[2], size_t message_bytes)
{
    sender s = {.fd = fds[0], .message_bytes = message_bytes, .total_bytes = (size_t)2 << 30};
    uint8_t *buffer = malloc(message_bytes);
    pthread_t thread;
    size_t received = 0;
    const int64_t began = bt_clock_now_ns();
    if (buffer != NULL && pthread_create(&thread, NULL, send_all, &s) == 0) {
        ssize_t n = 1;
        while (n > 0) {
            n = recv(fds[1], buffer, message_bytes, 0);
            received += n > 0 ? (size_t)n : 0;
        }
        (void)pthread_join(thread, NULL);
    }
    const int64_t ns = bt_clock_now_ns() - began;
    free(buffer);
    return s.ok && received == s.total_bytes ? (double)received * 1e9 / (double)ns : 0;
}

bt_status bt_machine_tcp_rate(size_t message_bytes, double *bytes, bt_error *err)
{
    double rates[N_RUNS];
    for (int run = 0; run < N_RUNS; run++) {
        int fds[2];
        if (!open_pair(fds)) {
            return bt_error_set(err, BT_EIO, "cannot measure loopback TCP: %s", strerror(errno));
        }
        rates[run] = receive_rate(fds, message_bytes);
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    *bytes = bt_report_median(rates, N_RUNS);
    return BT_OK;
}

/* ---- shared mappings ---- */

static uint8_t *map_memory_file(size_t bytes)
{
    const int fd = memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0) {
        return NULL;
    }
    void *at = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    }
    (void)close(fd);
    return at == MAP_FAILED ? NULL : at;
}

bt_status bt_machine_shm_copy_rate(size_t bytes, double *rate, bt_error *err)
{
    uint8_t *source = map_memory_file(bytes);
    uint8_t *target = map_memory_file(bytes);
    bt_status status = BT_OK;
    if (source == NULL || target == NULL) {
        status = bt_error_set(err, BT_ENOMEM, "cannot map %zu bytes of shared memory", bytes);
    } else {
        memset(source, 1, bytes);
        memset(target, 2, bytes);
        double rates[N_RUNS];
        for (int run = 0; run < N_RUNS; run++) {
            const int64_t began = bt_clock_now_ns();
            memcpy(target, source, bytes);
            rates[run] = (double)bytes * 1e9 / (double)(bt_clock_now_ns() - began);
        }
        *rate = bt_report_median(rates, N_RUNS);
    }
    if (source != NULL) {
        (void)munmap(source, bytes);
    }
    if (target != NULL) {
        (void)munmap(target, bytes);
    }
    return status;
}
