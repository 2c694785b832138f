//! Work split among threads, for kernels that last microseconds.
//!
//! A forward of one token is some 150 parallel regions of 5 to 50 µs. Waking a sleeping thread costs as much as such a
//! region, so the helpers wait awake for a short while after each; an idle program soon has them asleep. As many threads
//! take part as Rayon's current pool has (so `RAYON_NUM_THREADS` holds); on wasm there is one.

use std::marker::PhantomData;
use std::ops::Range;

/// A slice of which parts write disjoint ranges.
pub(super) struct Disjoint<'a, T> {
    at: *mut T,
    len: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: the ranges that threads write are disjoint (the contract of `range`), so each element has one owner.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Disjoint { at: slice.as_mut_ptr(), len: slice.len(), of: PhantomData }
    }

    /// A range of the slice.
    ///
    /// # Safety
    /// No other part may hold a range that overlaps with this one.
    #[expect(clippy::mut_from_ref, reason = "handing out disjoint ranges is what this type is for")]
    #[inline(always)]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "a range of the slice");
        // SAFETY: in bounds as just checked; disjoint as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(range.start), range.len()) }
    }
}

/// The range of `0..len` that is part `part` of `parts`.
pub(super) fn share(len: usize, part: usize, parts: usize) -> Range<usize> {
    len * part / parts..len * (part + 1) / parts
}

#[cfg(target_family = "wasm")]
pub(super) use alone::{run, threads};
#[cfg(not(target_family = "wasm"))]
pub(super) use together::{run, threads};

#[cfg(target_family = "wasm")]
mod alone {
    /// Threads that take part in a region.
    pub fn threads() -> usize {
        1
    }

    /// Calls `work` with each of `0..parts`.
    pub fn run(parts: usize, work: impl Fn(usize) + Sync) {
        (0..parts).for_each(work);
    }
}

#[cfg(not(target_family = "wasm"))]
mod together {
    use std::cell::UnsafeCell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use std::sync::{Mutex, OnceLock};
    use std::thread::Thread;

    type Work<'a> = dyn Fn(usize) + Sync + 'a;

    /// Turns of a helper's wait before it sleeps: some 50 µs.
    const SPINS: u32 = 2000;

    /// Threads that take part in a region.
    pub fn threads() -> usize {
        rayon::current_num_threads()
    }

    /// Calls `work` with each of `0..parts`, on all threads; returns when all parts are done. Called from within a
    /// part, or while another thread has the helpers, it does the work alone.
    pub fn run(parts: usize, work: impl Fn(usize) + Sync) {
        let helpers = threads() - 1;
        if parts > 1
            && helpers > 0
            && let Ok(pool) = POOL.try_lock()
        {
            pool.get_or_init(|| Pool::start(helpers)).run(parts, &work);
        } else {
            (0..parts).for_each(work);
        }
    }

    /// Locked while a region runs.
    static POOL: Mutex<OnceLock<Pool>> = Mutex::new(OnceLock::new());

    struct Pool {
        job: &'static Job,
        helpers: Vec<(Thread, &'static AtomicBool)>,
    }

    /// The region that runs, or ran last.
    struct Job {
        /// Number of the region, its parts, its next part, so that taking a part is one compare-and-swap, and a helper
        /// that comes late cannot take a part of a region that has ended.
        ticket: AtomicU64,
        done: AtomicUsize,
        panicked: AtomicBool,
        work: UnsafeCell<Option<*const Work<'static>>>,
    }

    // SAFETY: `work` is written by `Pool::run` alone, between regions, and read by those who hold a part of the region.
    unsafe impl Sync for Job {}
    // SAFETY: as above; the pointer is to a `Sync` closure.
    unsafe impl Send for Job {}

    const PART_BITS: u32 = 20;
    const PART_MASK: u64 = (1 << PART_BITS) - 1;

    fn parts_of(ticket: u64) -> u64 {
        ticket >> PART_BITS & PART_MASK
    }

    impl Pool {
        fn start(helpers: usize) -> Self {
            let job: &'static Job = Box::leak(Box::new(Job {
                ticket: AtomicU64::new(0),
                done: AtomicUsize::new(0),
                panicked: AtomicBool::new(false),
                work: UnsafeCell::new(None),
            }));
            let helper = |n: usize| {
                let asleep: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
                let helper = std::thread::Builder::new().name(format!("kernel-{n}"));
                // Without the thread the others do its share.
                let handle = helper.spawn(move || help(job, asleep)).ok()?;
                Some((handle.thread().clone(), asleep))
            };
            Pool { job, helpers: (0..helpers).filter_map(helper).collect() }
        }

        fn run(&self, parts: usize, work: &Work<'_>) {
            assert!(parts as u64 <= PART_MASK, "a region of {parts} parts");
            let job = self.job;
            let region = (job.ticket.load(Ordering::Relaxed) >> (2 * PART_BITS)) + 1;
            // SAFETY: no part of a region is open, since the last `run` waited for all, so nobody reads. The lifetime is
            // dropped, which is sound since this function waits until no part can be running.
            unsafe { *job.work.get() = Some(std::mem::transmute::<*const Work<'_>, *const Work<'static>>(work)) };
            job.done.store(0, Ordering::Relaxed);
            job.ticket.store(region << (2 * PART_BITS) | (parts as u64) << PART_BITS, Ordering::SeqCst);
            for (thread, asleep) in &self.helpers {
                if asleep.load(Ordering::SeqCst) {
                    thread.unpark();
                }
            }
            job.take_parts();
            let mut spins = 0u32;
            while job.done.load(Ordering::Acquire) < parts {
                spins += 1;
                if spins.is_multiple_of(SPINS) {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
            if job.panicked.swap(false, Ordering::Relaxed) {
                resume_unwind(Box::new("a part of a kernel panicked; its message is above"));
            }
        }
    }

    impl Job {
        /// Does parts until none is left.
        fn take_parts(&self) {
            let mut ticket = self.ticket.load(Ordering::Acquire);
            while ticket & PART_MASK < parts_of(ticket) {
                match self.ticket.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => {
                        // SAFETY: this part is taken and not done, so `Pool::run` still waits: the pointer is that of
                        // this region, and alive.
                        let work = unsafe { (*self.work.get()).map(|work| &*work) };
                        let part = (ticket & PART_MASK) as usize;
                        if catch_unwind(AssertUnwindSafe(|| work.map(|work| work(part)))).is_err() {
                            self.panicked.store(true, Ordering::Relaxed);
                        }
                        self.done.fetch_add(1, Ordering::Release);
                        ticket = self.ticket.load(Ordering::Acquire);
                    }
                    Err(now) => ticket = now,
                }
            }
        }
    }

    fn help(job: &Job, asleep: &AtomicBool) {
        loop {
            job.take_parts();
            let seen = job.ticket.load(Ordering::Acquire);
            let changed = || job.ticket.load(Ordering::SeqCst) >> (2 * PART_BITS) != seen >> (2 * PART_BITS);
            if (0..SPINS).any(|_| {
                std::hint::spin_loop();
                changed()
            }) {
                continue;
            }
            asleep.store(true, Ordering::SeqCst);
            // `run` looks at `asleep` after it has changed the ticket, so one of the two is seen.
            while !changed() {
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }
}
