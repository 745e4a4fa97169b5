// A team of threads that carries out a job of many short phases, each cut into pieces.
//
// A step of a small model has hundreds of phases of a few microseconds, on cores that the user's program and others
// want as well. So nobody waits for a thread, only for work: a phase is over when its pieces are done, whoever did
// them, and a thread that was late, or away, finds out which phase it is and helps there. A thread without a core
// delays the others by the one piece that it may hold, and one that never comes delays nobody. Who waits for a piece
// spins for a moment and then sleeps: where cores are scarce, the piece's thread needs this one.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#endif

// How far a job is: the phase and its next piece in one word, so that a piece is only ever taken of the phase meant.
class Progress {
  public:
    static constexpr int PHASE_SHIFT = 40;

    // Whether piece [begin, end) of at most `grain` was taken; false when none is left or the phase is over.
    bool take(uint64_t phase, int64_t total, int64_t grain, int64_t* begin, int64_t* end) {
        uint64_t at = state_.load(std::memory_order_acquire);
        while (at >> PHASE_SHIFT == phase) {
            const int64_t next = (int64_t)(at & ((1ull << PHASE_SHIFT) - 1));
            if (next >= total) return false;
            if (!state_.compare_exchange_weak(at, at + (uint64_t)grain, std::memory_order_acquire)) continue;
            *begin = next;
            *end = next + grain < total ? next + grain : total;
            return true;
        }
        return false;
    }

    void finish(uint64_t phase, int64_t count, int64_t total) {
        if (num_done_.fetch_add(count, std::memory_order_acq_rel) + count != total) return;
        num_done_.store(0, std::memory_order_relaxed);  // before the phase moves: nobody adds to it until then
        state_.store((phase + 1) << PHASE_SHIFT, std::memory_order_seq_cst);
        turn_.fetch_add(1, std::memory_order_seq_cst);
        if (num_asleep_.load(std::memory_order_seq_cst) > 0) wake_all();
    }

    void wait(uint64_t phase) {
        for (int i = 0; i < SPINS; i++) {
            if (is_over(phase)) return;
            pause();
        }
        num_asleep_.fetch_add(1, std::memory_order_seq_cst);
        for (;;) {
            const int32_t turn = turn_.load(std::memory_order_seq_cst);
            if (is_over(phase)) break;
            sleep(turn);
        }
        num_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }

  private:
    static constexpr int SPINS = 2500;  // about 0.1 ms
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int64_t> num_done_{0};
    alignas(64) std::atomic<int32_t> turn_{0};
    std::atomic<int32_t> num_asleep_{0};

    bool is_over(uint64_t phase) const { return state_.load(std::memory_order_seq_cst) >> PHASE_SHIFT != phase; }

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }

    void sleep(int32_t turn) {
#if defined(__linux__)
        syscall(SYS_futex, &turn_, FUTEX_WAIT_PRIVATE, turn, nullptr, nullptr, 0);  // returns at once if it has moved
#else
        std::this_thread::yield();
#endif
    }
    void wake_all() {
#if defined(__linux__)
        syscall(SYS_futex, &turn_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
    }
};

// One thread's way through the phases of a job. Every member asks for the same phases in the same order.
class Member {
  public:
    Member(Progress& progress, int32_t team_size) : progress_(progress), team_size_(team_size) {}

    // f(begin, end) for pieces of at most `grain` of [0, total); returns when all are done, by whomever.
    template <class F>
    void share(int64_t total, int64_t grain, F&& f) {
        if (total <= 0) return;
        const uint64_t phase = phase_++;
        int64_t begin, end;
        while (progress_.take(phase, total, grain, &begin, &end)) {
            f(begin, end);
            progress_.finish(phase, end - begin, total);
        }
        progress_.wait(phase);
    }

    // Pieces small enough that the last ones even out, and no smaller.
    int64_t grain(int64_t total) const { return total / (team_size_ * 8) > 1 ? total / (team_size_ * 8) : 1; }

  private:
    Progress& progress_;
    const int32_t team_size_;
    uint64_t phase_ = 0;
};

// What a team carries out. A member may still be on its way through a job when that is long over; it then touches
// what the job holds by value and nothing else.
class Job {
  public:
    virtual ~Job() = default;
    virtual void run(Member& member, int32_t thread) const = 0;
    Progress progress;
};

class Team {
  public:
    explicit Team(int32_t size) : size_(size) {
        for (int32_t i = 1; i < size; i++) helpers_.emplace_back([this, i] { help(i); });
    }
    ~Team() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            is_closing_ = true;
        }
        arrived_.notify_all();
        for (auto& helper : helpers_) helper.join();
    }

    int32_t size() const { return size_; }

    // The caller works too, and returns when the job is done. One job at a time.
    void run(std::shared_ptr<Job> job) {
        if (size_ > 1) {
            leave_core_to_caller();
            {
                std::lock_guard<std::mutex> lock(mutex_);
                job_ = job;
                num_jobs_++;
            }
            arrived_.notify_all();
        }
        Member member(job->progress, size_);
        job->run(member, 0);
    }

  private:
    const int32_t size_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable arrived_;
    std::shared_ptr<Job> job_;
    uint64_t num_jobs_ = 0;
    bool is_closing_ = false;
    std::vector<std::thread> helpers_;
    int caller_core_ = -1;

    // Helpers keep off the caller's core. A thread that sleeps often is woken where its waker runs if no core is
    // idle, and a helper there would come to nothing: the caller does not wait for it.
    void leave_core_to_caller() {
#if defined(__linux__)
        const int core = sched_getcpu();
        if (core == caller_core_) return;
        caller_core_ = core;
        cpu_set_t cores;
        if (core < 0 || sched_getaffinity(0, sizeof cores, &cores) != 0) return;
        CPU_CLR(core, &cores);
        if (CPU_COUNT(&cores) == 0) return;
        for (auto& helper : helpers_) pthread_setaffinity_np(helper.native_handle(), sizeof cores, &cores);
#endif
    }

    void help(int32_t thread) {
        uint64_t seen = 0;
        for (;;) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                arrived_.wait(lock, [&] { return is_closing_ || num_jobs_ != seen; });
                if (is_closing_) return;
                seen = num_jobs_;
                job = job_;
            }
            Member member(job->progress, size_);
            job->run(member, thread);
        }
    }
};
