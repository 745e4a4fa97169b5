// A team of threads inside one parallel region: work handed out in small pieces, and a barrier after each phase.
//
// A step of a small model has hundreds of phases of a few microseconds. A thread that waits spins for a moment and
// then sleeps: where another program holds a core, the system needs that core for the thread that is late. Pieces go
// to whoever is free, so that such a thread delays the others by one piece and not by its share.
#pragma once
#include <atomic>
#include <climits>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <thread>
#endif

class Team {
  public:
    explicit Team(int32_t size) : size_(size) {}

    // f(begin, end) for pieces of at most `grain` of [0, total); returns when all are done. Every member calls it.
    template <class F>
    void share(int64_t total, int64_t grain, F&& f) {
        for (;;) {
            const int64_t begin = next_.fetch_add(grain, std::memory_order_relaxed);
            if (begin >= total) break;
            f(begin, begin + grain < total ? begin + grain : total);
        }
        wait();
    }

    // Pieces small enough that the last ones even out, and no smaller.
    int64_t grain(int64_t total) const { return total / (size_ * 8) > 1 ? total / (size_ * 8) : 1; }

  private:
    static constexpr int SPINS = 4000;
    const int32_t size_;
    alignas(64) std::atomic<int32_t> phase_{0};
    std::atomic<int32_t> num_asleep_{0};
    alignas(64) std::atomic<int32_t> num_arrived_{0};
    alignas(64) std::atomic<int64_t> next_{0};

    void wait() {
        const int32_t now = phase_.load(std::memory_order_relaxed);  // it cannot move before this member arrives
        if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            num_arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            phase_.store(now + 1, std::memory_order_seq_cst);
            if (num_asleep_.load(std::memory_order_seq_cst) > 0) wake_all();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (phase_.load(std::memory_order_acquire) != now) return;
            pause();
        }
        num_asleep_.fetch_add(1, std::memory_order_seq_cst);
        while (phase_.load(std::memory_order_seq_cst) == now) sleep(now);
        num_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    // Sleeps only while `phase_` is still `now`: the system compares before it suspends.
    void sleep(int32_t now) {
#if defined(__linux__)
        syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
#else
        std::this_thread::yield();
#endif
    }
    void wake_all() {
#if defined(__linux__)
        syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
    }
};
