/* Threads that compute the blocks of a job together, without the GIL. The caller takes part, so it never waits for a
   thread that is late; it waits for those that have begun a block. */
#ifndef FASTMARL_BLOCK_THREADS_H
#define FASTMARL_BLOCK_THREADS_H

#include <Python.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define AWAKE_NS 20000 /* that a thread looks for the next job before it sleeps: half the time that waking it takes */
#define LOOKS 50        /* between two readings of the clock, or before the caller lets others run */

typedef void (*block_fn)(const void *context, int thread, Py_ssize_t block);

typedef struct {
    pthread_mutex_t lock; /* of the threads that go to sleep */
    pthread_cond_t wake;
    pid_t pid; /* of the process that has the threads; a forked one has none */
    block_fn compute;
    const void *context;
    Py_ssize_t n_blocks;
    atomic_llong next; /* block */
    atomic_long jobs;  /* begun so far */
    atomic_int is_open, n_inside, n_asleep, is_over;
} block_threads;

static inline void block_threads_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline long long block_threads_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static inline int block_threads_begin(block_threads *all) {
    all->pid = getpid();
    return pthread_mutex_init(&all->lock, NULL) || pthread_cond_init(&all->wake, NULL);
}

static inline void block_threads_wake(block_threads *all) {
    pthread_mutex_lock(&all->lock);
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
}

static inline int block_threads_must_wait(block_threads *all, long seen) {
    return atomic_load(&all->jobs) == seen && !atomic_load(&all->is_over);
}

static inline void block_threads_wait(block_threads *all, long seen) {
    const long long end = block_threads_clock() + AWAKE_NS;
    do
        for (int look = 0; look < LOOKS; look++) {
            if (!block_threads_must_wait(all, seen)) return;
            block_threads_pause();
        }
    while (block_threads_clock() < end);
    pthread_mutex_lock(&all->lock);
    atomic_fetch_add(&all->n_asleep, 1); /* before the next look, so that a job begun after it wakes this thread */
    while (block_threads_must_wait(all, seen)) pthread_cond_wait(&all->wake, &all->lock);
    atomic_fetch_sub(&all->n_asleep, 1);
    pthread_mutex_unlock(&all->lock);
}

static inline void block_threads_take(block_threads *all, int thread) {
    long long block;
    while ((block = atomic_fetch_add(&all->next, 1)) < all->n_blocks) all->compute(all->context, thread, block);
}

/* Computes blocks of all jobs until the end, as the thread of this number, from 1 on. */
static inline void block_threads_serve(block_threads *all, int thread) {
    for (long seen = 0;; ) {
        block_threads_wait(all, seen);
        if (atomic_load(&all->is_over)) return;
        seen = atomic_load(&all->jobs);
        atomic_fetch_add(&all->n_inside, 1); /* before the look at is_open: the caller closes, then looks at n_inside */
        if (atomic_load(&all->is_open)) block_threads_take(all, thread);
        atomic_fetch_sub(&all->n_inside, 1);
    }
}

/* Computes all blocks of a job; the caller is thread 0. */
static inline void block_threads_run(block_threads *all, block_fn compute, const void *context, Py_ssize_t n_blocks) {
    all->compute = compute;
    all->context = context;
    all->n_blocks = n_blocks;
    atomic_store(&all->next, 0);
    if (all->pid != getpid()) {
        block_threads_take(all, 0);
        return;
    }
    atomic_store(&all->is_open, 1);
    atomic_fetch_add(&all->jobs, 1);
    if (atomic_load(&all->n_asleep)) block_threads_wake(all);
    block_threads_take(all, 0);
    atomic_store(&all->is_open, 0);
    for (int look = 0; atomic_load(&all->n_inside); look++) {
        if (look < LOOKS) block_threads_pause();
        else sched_yield();
    }
}

static inline void block_threads_end(block_threads *all) {
    atomic_store(&all->is_over, 1);
    if (all->pid == getpid()) block_threads_wake(all); /* else one of the missing threads may hold the lock */
}

#endif
