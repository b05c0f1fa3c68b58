//! Batches: order, failures, undoing, waiting and cancelling.

mod support;

use forebay_iov::backend::{Address, Backend, Object};
use forebay_iov::{
    Batch, Collection, Controls, Errno, Error, Failure, Key, Meta, Op, Options, Order, Outcome,
    Predicate, Result, Session, Status, Workspace,
};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use support::{Dir, in_memory, meta, options};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// A back end whose reads wait until the gate is open. Writes record their bytes, and fail for a
/// byte 'F'.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Seen>, Condvar)>);

/// Whether the gate is open, the bytes written, and the number of reads that have arrived.
type Seen = (bool, Vec<u8>, usize);

impl Gate {
    fn open_it(&self) {
        self.0.0.lock().unwrap().0 = true;
        self.0.1.notify_all();
    }

    fn written(&self) -> String {
        String::from_utf8(self.0.0.lock().unwrap().1.clone()).unwrap()
    }

    /// Waits until this many reads have arrived at the gate.
    fn wait_for(&self, waiting: usize) {
        let state = self.0.0.lock().unwrap();
        let (state, late) = self
            .0
            .1
            .wait_timeout_while(state, Duration::from_secs(60), |s| s.2 < waiting)
            .unwrap();
        drop(state);
        assert!(!late.timed_out());
    }
}

impl Backend for Gate {
    fn kind(&self) -> &str {
        "gate"
    }
    fn outlives_process(&self) -> bool {
        false
    }
    fn supports(&self, _: &Controls) -> Result<()> {
        Ok(())
    }
    fn create(&self, _: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        Ok(Box::new(self.clone()))
    }
    fn open(&self, _: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        Ok(Box::new(self.clone()))
    }
    fn delete(&self, _: &Address) -> Result<()> {
        Ok(())
    }
}

impl Object for Gate {
    fn read(&self, _: &mut [u8], _: u64) -> Result<usize> {
        let mut state = self.0.0.lock().unwrap();
        state.2 += 1;
        self.0.1.notify_all();
        let waited = self
            .0
            .1
            .wait_timeout_while(state, Duration::from_secs(60), |s| !s.0);
        assert!(!waited.unwrap().1.timed_out());
        Ok(0)
    }
    fn write(&self, from: &[u8], _: u64) -> Result<()> {
        if from == b"F" {
            return Err(Error::new(Errno::NOSPC, "full"));
        }
        self.0.0.lock().unwrap().1.extend(from);
        Ok(())
    }
    fn append(&self, from: &[u8]) -> Result<u64> {
        self.write(from, 0).map(|()| 0)
    }
    fn truncate(&self, _: u64) -> Result<()> {
        Ok(())
    }
    fn size(&self) -> Result<u64> {
        Ok(0)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

fn gated() -> (Session, Gate, Collection) {
    let session = Session::open("memory").unwrap();
    let gate = Gate::default();
    session
        .attach_backend("gate", Arc::new(gate.clone()))
        .unwrap();
    let w = Workspace::create(&session, "w", &Meta::new()).unwrap();
    let c = Collection::create(&w, "c", &options("gate", &[])).unwrap();
    (session, gate, c)
}

#[test]
fn all_verbs_in_one_batch() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    for (order, backend) in [(Order::Chain, "memory"), (Order::Free, "scratch")] {
        let mut batch = Batch::new(&session, Failure::Continue, order);
        let with = options(backend, &[("step", "1")]);
        let (_, a) = batch.create(&w, "a", with.clone()).unwrap();
        let (_, b) = batch.create(&w, "b", with).unwrap();
        let written = batch.write(&a, 0, b"hello".to_vec()).unwrap();
        let appended = batch.append(&a, b" world").unwrap();
        batch.after(appended, &[written]).unwrap();
        let copied = batch.copy(&a, (6, 99), &b, 1).unwrap();
        batch.after(copied, &[appended]).unwrap();
        let cut = batch.truncate(&b, 4).unwrap();
        batch.after(cut, &[copied]).unwrap();
        let changed = batch
            .set_meta(&b, &[("step".into(), Some("2".into()))])
            .unwrap();
        let read = batch.read(&b, 0, 100).unwrap();
        batch.after(read, &[cut]).unwrap();
        let known = batch.get_meta(&b).unwrap();
        let found = batch
            .search(&w, Predicate::parse("step >= 2").unwrap())
            .unwrap();
        batch.after(known, &[changed]).unwrap();
        batch.after(found, &[changed]).unwrap();
        batch.sync(&a).unwrap();
        let closed = batch.close(&a).unwrap();
        batch.close(&b).unwrap();
        let looked = batch.lookup(&w, Key::Name("a")).unwrap();
        batch.after(looked, &[closed]).unwrap();
        let (_, again) = batch.open(&w, Key::Name("a")).unwrap();
        // Only a chain guarantees that the last operation finds the collection.
        let running = batch.start().unwrap();
        assert!(running.wait(LIMIT).unwrap());
        if order == Order::Chain {
            assert_eq!(running.error(), None);
            assert_eq!(again.size().unwrap(), 11);
        }
        assert_eq!(running.result(appended).unwrap(), Outcome::Number(5));
        assert_eq!(running.result(copied).unwrap(), Outcome::Number(5));
        assert_eq!(
            running.result(read).unwrap(),
            Outcome::Bytes(b"\0wor".into())
        );
        assert_eq!(
            running.result(known).unwrap(),
            Outcome::Meta(meta(&[("step", "2")]))
        );
        let Outcome::Records(records) = running.result(found).unwrap() else {
            panic!("no records")
        };
        assert_eq!((records.len(), records[0].name.as_str()), (1, "b"));
        assert!(matches!(running.result(looked).unwrap(), Outcome::Record(r) if r.name == "a"));
        assert_eq!(a.size().unwrap_err().errno(), Errno::BADF);
        for name in ["a", "b"] {
            Collection::delete(&w, Key::Name(name)).unwrap();
        }
    }
}

#[test]
fn a_chain_keeps_its_order_and_a_free_batch_may_not() {
    let (session, gate, c) = gated();
    gate.open_it();
    let mut batch = Batch::new(&session, Failure::Stop, Order::Chain);
    let text: Vec<u8> = (0..200).map(|n| b'a' + n % 26).collect();
    for byte in &text {
        batch.write(&c, 0, [*byte]).unwrap();
    }
    assert!(batch.start().unwrap().wait(LIMIT).unwrap());
    assert_eq!(gate.written().as_bytes(), text);
    // Explicit dependencies: an operation can need only operations that were added before it.
    let mut batch = Batch::new(&session, Failure::Stop, Order::Free);
    let first = batch.write(&c, 0, b"1").unwrap();
    let second = batch.write(&c, 0, b"2").unwrap();
    batch.after(second, &[first]).unwrap();
    for wrong in [batch.after(first, &[second]), batch.after(Op(7), &[first])] {
        assert_eq!(wrong.unwrap_err().errno(), Errno::INVAL);
    }
    assert!(batch.start().unwrap().wait(LIMIT).unwrap());
    assert!(gate.written().ends_with("12"));
}

#[test]
fn what_runs_at_the_same_time_does() {
    let (session, gate, c) = gated();
    let mut batch = Batch::new(&session, Failure::Stop, Order::Free);
    let reads = [batch.read(&c, 0, 1).unwrap(), batch.read(&c, 0, 1).unwrap()];
    let running = batch.start().unwrap();
    // Both reads are in progress: neither waits for the other.
    gate.wait_for(2);
    assert!(!running.test().unwrap());
    assert!(!running.wait(Some(Duration::from_millis(20))).unwrap());
    assert_eq!(running.status(reads[1]).unwrap(), Status::Running);
    assert_eq!(
        running.result(reads[0]).unwrap_err().errno(),
        Errno::INPROGRESS
    );
    gate.open_it();
    assert!(running.wait(LIMIT).unwrap() && running.test().unwrap());
    assert_eq!(running.status(reads[0]).unwrap(), Status::Done);
    assert_eq!(running.status(Op(2)).unwrap_err().errno(), Errno::INVAL);
}

#[test]
fn stop_and_continue() {
    for (failure, expected, last) in [
        (Failure::Stop, "a", Status::Skipped),
        (Failure::Continue, "acd", Status::Done),
    ] {
        let (session, gate, c) = gated();
        let mut batch = Batch::new(&session, failure, Order::Chain);
        batch.write(&c, 0, b"a").unwrap();
        let fails = batch.write(&c, 0, b"F").unwrap();
        batch.write(&c, 0, b"c").unwrap();
        let needs = batch.write(&c, 0, b"n").unwrap();
        batch.after(needs, &[fails]).unwrap();
        let needs_that = batch.write(&c, 0, b"m").unwrap();
        batch.after(needs_that, &[needs]).unwrap();
        let free = batch.write(&c, 0, b"d").unwrap();
        let running = batch.start().unwrap();
        assert!(running.wait(LIMIT).unwrap());
        assert_eq!(gate.written(), expected);
        assert_eq!(running.status(fails).unwrap(), Status::Failed);
        assert_eq!(running.status(needs).unwrap(), Status::Skipped);
        assert_eq!(running.status(needs_that).unwrap(), Status::Skipped);
        assert_eq!(running.status(free).unwrap(), last);
        let error = running.error().unwrap();
        assert_eq!(error.errno(), Errno::NOSPC);
        assert_eq!(error.to_string(), "operation 1 (write): full");
        assert_eq!(running.result(needs).unwrap_err().errno(), Errno::CANCELED);
    }
}

#[test]
fn what_a_batch_opens_is_waited_for_and_its_failure_skips() {
    let (session, _, c) = gated();
    let w = c.workspace();
    let mut batch = Batch::new(&session, Failure::Continue, Order::Free);
    let (open, nothing) = batch.open(w, Key::Name("absent")).unwrap();
    let write = batch.write(&nothing, 0, b"x").unwrap();
    let running = batch.start().unwrap();
    assert!(running.wait(LIMIT).unwrap());
    assert_eq!(running.result(open).unwrap_err().errno(), Errno::NOENT);
    assert_eq!(running.status(write).unwrap(), Status::Skipped);
    assert_eq!(nothing.size().unwrap_err().errno(), Errno::BADF);
}

#[test]
fn cancelled_is_what_has_not_begun() {
    let (session, gate, c) = gated();
    let mut batch = Batch::new(&session, Failure::Continue, Order::Chain);
    let read = batch.read(&c, 0, 1).unwrap();
    let write = batch.write(&c, 0, b"w").unwrap();
    let running = batch.start().unwrap();
    gate.wait_for(1);
    running.cancel().unwrap();
    assert!(!running.test().unwrap());
    gate.open_it();
    assert!(running.wait(LIMIT).unwrap());
    assert_eq!(running.status(read).unwrap(), Status::Done);
    assert_eq!(running.status(write).unwrap(), Status::Skipped);
    assert_eq!(running.error().unwrap().errno(), Errno::CANCELED);
    assert_eq!(gate.written(), "");
    // Cancelling an ended batch changes nothing.
    running.cancel().unwrap();
}

#[test]
fn a_batch_that_is_rolled_back_has_done_nothing() {
    let (session, _, c) = gated();
    let w = c.workspace().clone();
    let old = Collection::create(&w, "old", &options("memory", &[("k", "1")])).unwrap();
    let doomed = Collection::create(&w, "doomed", &options("memory", &[])).unwrap();
    old.write(b"0123456789", 0).unwrap();
    doomed.write(b"d", 0).unwrap();
    for fails in [true, false] {
        let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
        let (created, new) = batch
            .create(&w, "new", options("memory", &[("k", "2")]))
            .unwrap();
        batch.write(&new, 0, b"n").unwrap();
        batch.write(&old, 2, b"xx").unwrap();
        batch.write(&old, 8, b"yyyy").unwrap();
        batch.append(&old, b"z").unwrap();
        batch.truncate(&old, 3).unwrap();
        batch.truncate(&old, 20).unwrap();
        let changes = [
            ("k".into(), Some("3".into())),
            ("l".into(), Some("4".into())),
        ];
        batch.set_meta(&old, &changes).unwrap();
        batch.copy(&doomed, (0, 1), &old, 0).unwrap();
        batch.delete(&w, Key::Name("doomed")).unwrap();
        let last = batch.write(&c, 0, if fails { b"F" } else { b"g" }).unwrap();
        let running = batch.start().unwrap();
        assert!(running.wait(LIMIT).unwrap());
        let mut bytes = [0; 32];
        let n = old.read(&mut bytes, 0).unwrap();
        let names: Vec<String> = Collection::search(&w, &Predicate::everything())
            .unwrap()
            .into_iter()
            .map(|r| r.name)
            .collect();
        if fails {
            assert_eq!(running.error().unwrap().errno(), Errno::NOSPC);
            assert_eq!(running.status(last).unwrap(), Status::Failed);
            assert_eq!(running.status(created).unwrap(), Status::Undone);
            assert_eq!(&bytes[..n], b"0123456789");
            assert_eq!(old.get_meta().unwrap(), meta(&[("k", "1")]));
            assert_eq!(names, ["c", "doomed", "old"]);
        } else {
            assert_eq!(running.error(), None);
            assert_eq!(&bytes[..n], b"d1x\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
            assert_eq!(old.get_meta().unwrap(), meta(&[("k", "3"), ("l", "4")]));
            assert_eq!(names, ["c", "new", "old"]);
        }
    }
}

#[test]
fn cancelling_rolls_back() {
    let (session, gate, c) = gated();
    let w = c.workspace().clone();
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Chain);
    let (created, _) = batch.create(&w, "new", options("memory", &[])).unwrap();
    batch.read(&c, 0, 1).unwrap();
    let running = batch.start().unwrap();
    gate.wait_for(1);
    assert!(Collection::lookup(&w, Key::Name("new")).is_ok());
    running.cancel().unwrap();
    gate.open_it();
    assert!(running.wait(LIMIT).unwrap());
    assert_eq!(running.status(created).unwrap(), Status::Undone);
    let gone = Collection::lookup(&w, Key::Name("new")).unwrap_err();
    assert_eq!(gone.errno(), Errno::NOENT);
}

#[test]
fn rollback_is_refused_where_a_kill_would_leave_half_of_it() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    let file = Collection::create(&w, "file", &options("scratch", &[])).unwrap();
    let mut batch = Batch::new(&session, Failure::Rollback, Order::Free);
    let (created, _) = batch.create(&w, "memory", Options::default()).unwrap();
    let ops = [
        batch.write(&file, 0, b"x").unwrap(),
        batch.create(&w, "new", options("scratch", &[])).unwrap().0,
        batch.delete(&w, Key::Name("file")).unwrap(),
    ];
    let running = batch.start().unwrap();
    assert!(running.wait(LIMIT).unwrap());
    let error = running.error().unwrap();
    assert_eq!(error.errno(), Errno::OPNOTSUPP);
    assert!(
        error.to_string().contains("failure=rollback can't be kept"),
        "{error}"
    );
    assert!(error.to_string().contains("'scratch'"), "{error}");
    assert!(
        ops.iter()
            .all(|op| running.status(*op).unwrap() != Status::Done)
    );
    assert_ne!(running.status(created).unwrap(), Status::Done);
    assert_eq!(file.size().unwrap(), 0);
    assert_eq!(
        Collection::search(&w, &Predicate::everything())
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn many_batches_of_many_threads() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (session, w) = (&session, &w);
            threads.spawn(move || {
                let started: Vec<_> = (0..20)
                    .map(|n| {
                        let mut batch = Batch::new(session, Failure::Stop, Order::Free);
                        for i in 0..50 {
                            let name = format!("{thread}.{n}.{i}");
                            let with = options("memory", &[("thread", &thread.to_string())]);
                            let (_, c) = batch.create(w, &name, with).unwrap();
                            batch.write(&c, 0, name.into_bytes()).unwrap();
                            batch.close(&c).unwrap();
                        }
                        batch.start().unwrap()
                    })
                    .collect();
                for running in started {
                    assert!(running.wait(LIMIT).unwrap());
                    assert_eq!(running.error(), None);
                }
            });
        }
    });
    for thread in ["0", "3"] {
        let found = Collection::search(&w, &Predicate::equal("thread", thread)).unwrap();
        assert_eq!(found.len(), 1000);
        let c = Collection::open(&w, Key::Uuid(found[999].uuid)).unwrap();
        let mut bytes = [0; 16];
        let n = c.read(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..n], found[999].name.as_bytes());
    }
}

#[test]
fn too_many_operations_are_refused_until_some_have_ended() {
    let (session, gate, c) = gated();
    let mut all = Vec::new();
    let batch = || {
        let mut batch = Batch::new(&session, Failure::Stop, Order::Chain);
        batch.read(&c, 0, 1).unwrap();
        while batch.len() < forebay_iov::batch::OPERATIONS_MAX {
            batch.write(&c, 0, b"").unwrap();
        }
        let full = batch.write(&c, 0, b"").unwrap_err();
        assert_eq!(full.errno(), Errno::TOOBIG);
        batch
    };
    for _ in 0..4 {
        all.push(batch().start().unwrap());
    }
    let refused = batch().start().err().unwrap();
    assert_eq!(refused.errno(), Errno::AGAIN);
    all.iter().for_each(|running| running.cancel().unwrap());
    gate.open_it();
    for running in &all {
        assert!(running.wait(LIMIT).unwrap());
    }
    let after = batch().start().unwrap();
    assert!(after.wait(LIMIT).unwrap());
}

#[test]
fn an_empty_batch_and_one_that_nobody_waits_for() {
    let dir = Dir::new();
    let (session, w) = in_memory(&dir);
    let empty = Batch::new(&session, Failure::Rollback, Order::Free);
    assert!(empty.is_empty());
    assert!(empty.start().unwrap().wait(LIMIT).unwrap());
    let mut batch = Batch::new(&session, Failure::Stop, Order::Chain);
    let names: Vec<String> = (0..100).map(|n| format!("n{n}")).collect();
    for name in &names {
        batch.create(&w, name, Options::default()).unwrap();
    }
    drop(batch.start().unwrap());
    // Drops this handle of the session while the batch runs.
    drop(session);
    let session = w.session().clone();
    let mut last = Batch::new(&session, Failure::Stop, Order::Free);
    last.lookup(&w, Key::Name("n0")).unwrap();
    last.start().unwrap().wait(LIMIT).unwrap();
}
