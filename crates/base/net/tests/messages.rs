//! Tests of messages between two nodes: replies in any order, bodies, deadlines, back pressure.

mod support;

use forebay_net::{
    Error, PoolKey, Reply, Request, Source, TcpTransport, Transport, WINDOW, envelope,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use support::*;

#[test]
fn requests_of_all_sizes_in_both_directions() {
    within(60, || {
        let (_a, b, c) = pair();
        for size in [
            0,
            1,
            100,
            4096,
            65_000.min(envelope::MAX_HEAD),
            envelope::MAX_HEAD,
        ] {
            let reply = ask(&c, ECHO, pattern(size), 5000).unwrap();
            assert!(reply.status == 17 && reply.head == pattern(size) && reply.body.is_none());
        }
        until("the other side knows", || {
            !b.served.connected.lock().unwrap().is_empty()
        });
        let back = b.served.connected.lock().unwrap()[0].clone();
        assert_eq!(back.peer().node.0, 1);
        assert_eq!(
            ask(&back, ECHO, b"back".to_vec(), 5000).unwrap().head,
            b"back"
        );

        let too_large = ask(&c, ECHO, vec![0; envelope::MAX_HEAD + 1], 5000)
            .err()
            .unwrap();
        assert!(matches!(too_large, Error::TooLarge { .. }), "{too_large}");
        for (kind, why) in [(DROP, "no answer"), (HUGE, "larger")] {
            let error = ask(&c, kind, Vec::new(), 5000).err().unwrap().to_string();
            assert!(error.contains(why) && error.contains("node 2"), "{error}");
        }
        assert!(ask(&c, ECHO, b"still there".to_vec(), 5000).is_ok());
    });
}

#[test]
fn many_at_once_from_many_threads() {
    within(60, || {
        let (_a, _b, c) = pair();
        std::thread::scope(|s| {
            for t in 0..8usize {
                let c = &c;
                s.spawn(move || {
                    for i in 0..2000 {
                        let head = pattern((t * 2000 + i) % 700);
                        assert_eq!(ask(c, ECHO, head.clone(), 10_000).unwrap().head, head);
                    }
                });
            }
        });
        // One thread also sends requests without waiting for each reply.
        let got = Arc::new(AtomicUsize::new(0));
        for i in 0..20_000usize {
            let got = got.clone();
            c.wait_for_room(soon(10_000)).unwrap();
            let request = Request {
                kind: ECHO,
                head: le(i),
                ..Request::default()
            };
            let done = move |reply: Result<Reply, Error>| {
                assert_eq!(number(&reply.unwrap().head), i);
                got.fetch_add(1, Ordering::SeqCst);
            };
            c.start(request, soon(10_000), Box::new(done)).unwrap();
        }
        until("all answers", || got.load(Ordering::SeqCst) == 20_000);
    });
}

#[test]
fn answers_come_in_any_order() {
    within(60, || {
        let (_a, _b, c) = pair();
        let order = Arc::new(Mutex::new(Vec::new()));
        for ms in [300usize, 200, 100, 0] {
            let order = order.clone();
            let request = Request {
                kind: LATER,
                head: le(ms),
                ..Request::default()
            };
            let done = move |reply: Result<Reply, Error>| {
                order.lock().unwrap().push(number(&reply.unwrap().head));
            };
            c.start(request, soon(10_000), Box::new(done)).unwrap();
        }
        until("all answers", || order.lock().unwrap().len() == 4);
        assert_eq!(*order.lock().unwrap(), [0, 100, 200, 300]);
    });
}

#[test]
fn bodies_of_all_sizes_plain_and_encrypted() {
    within(120, || {
        for encrypts in [false, true] {
            let (_a, _b, c) = pair_that(encrypts);
            for size in [
                1,
                7,
                4096,
                65_518,
                65_519,
                65_520,
                1 << 20,
                (1 << 20) + 1,
                16 << 20,
            ] {
                let request = Request {
                    kind: TAKE,
                    body: Some(Box::new(pattern(size))),
                    ..Request::default()
                };
                let reply = c.call(request, soon(20_000)).unwrap();
                assert_eq!((reply.status, number(&reply.head)), (0, size));

                let request = Request {
                    kind: GIVE,
                    head: le(size),
                    landing: Some(Box::new(vec![0u8; size + 5])),
                    ..Request::default()
                };
                let reply = c.call(request, soon(20_000)).unwrap();
                assert_eq!((reply.status, &reply.head[..]), (3, &b"here"[..]));
                let body = reply.body.unwrap();
                assert_eq!(body.length, size);
                let bytes = body.into_landing::<Vec<u8>>().unwrap();
                assert!(bytes[..size] == pattern(size) && bytes[size..] == [0; 5]);
            }
            // A body without a landing is refused, and the next one isn't affected.
            let unwanted = Request {
                kind: UNWANTED,
                body: Some(Box::new(pattern(3 << 20))),
                ..Request::default()
            };
            let error = c.call(unwanted, soon(10_000)).err().unwrap();
            assert!(matches!(error, Error::NotServed { .. }), "{error}");
            let small = Request {
                kind: GIVE,
                head: le(1000),
                landing: Some(Box::new(vec![0u8; 999])),
                ..Request::default()
            };
            let error = c.call(small, soon(10_000)).err().unwrap();
            assert!(matches!(error, Error::NotServed { .. }), "{error}");
            let too_large = Request {
                body: Some(Box::new(vec![0; envelope::MAX_BODY + 1])),
                ..Request::default()
            };
            let error = c.call(too_large, soon(10_000)).err().unwrap();
            assert!(matches!(error, Error::TooLarge { .. }), "{error}");
            assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
        }
    });
}

/// A source whose pieces have odd sizes.
struct Pieces(Vec<u8>, usize);

impl Source for Pieces {
    fn length(&self) -> usize {
        self.0.len()
    }
    fn piece(&self, at: usize) -> &[u8] {
        let end = (at / self.1 + 1) * self.1;
        &self.0[at..end.min(self.0.len())]
    }
}

#[test]
fn bodies_in_pieces_many_at_once_while_small_messages_pass() {
    within(120, || {
        for encrypts in [false, true] {
            let (_a, _b, c) = pair_that(encrypts);
            let (done, answers) = mpsc::channel();
            let count = 40;
            for i in 0..count {
                let size = 300_000 + i * 7777;
                let request = Request {
                    kind: BOTH,
                    head: le(size),
                    body: Some(Box::new(Pieces(pattern(size), 1 + i * 1009))),
                    landing: Some(Box::new(vec![0u8; size])),
                    lazily: false,
                };
                let done = done.clone();
                let then = move |reply: Result<Reply, Error>| done.send(reply).unwrap();
                c.start(request, soon(60_000), Box::new(then)).unwrap();
                assert!(ask(&c, ECHO, le(i), 10_000).is_ok());
            }
            for _ in 0..count {
                let reply = answers.recv().unwrap().unwrap();
                let size = number(&reply.head);
                let bytes = reply.body.unwrap().into_landing::<Vec<u8>>().unwrap();
                assert!(*bytes == pattern(size));
            }
        }
    });
}

#[test]
fn a_deadline_is_kept_and_names_the_peer() {
    within(60, || {
        let (_a, b, c) = pair();
        let begin = Instant::now();
        let error = ask(&c, LATER, le(700), 150).err().unwrap();
        let took = begin.elapsed();
        assert_eq!(error, Error::Deadline { peer: b.peer() });
        assert!((150..600).contains(&took.as_millis()), "{took:?}");
        // A shorter deadline is set after a longer one.
        let long = Request {
            kind: HOLD,
            ..Request::default()
        };
        c.start(long, soon(60_000), Box::new(|_| ())).unwrap();
        let begin = Instant::now();
        assert!(ask(&c, HOLD, Vec::new(), 50).is_err());
        assert!(begin.elapsed() < Duration::from_millis(400));
        // The late reply of the request with the shorter deadline has no effect.
        std::thread::sleep(Duration::from_millis(700));
        assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
        assert!(matches!(
            ask(&c, ECHO, Vec::new(), 0),
            Err(Error::Deadline { .. } | Error::Full { .. })
        ));
    });
}

#[test]
fn a_peer_with_a_full_window_gets_no_more_requests() {
    within(60, || {
        let (_a, b, c) = pair();
        for _ in 0..WINDOW {
            let request = Request {
                kind: HOLD,
                ..Request::default()
            };
            c.start(request, soon(60_000), Box::new(|_| ())).unwrap();
        }
        let request = Request {
            kind: HOLD,
            ..Request::default()
        };
        let error = c
            .start(request, soon(60_000), Box::new(|_| ()))
            .unwrap_err();
        assert_eq!(error, Error::Full { peer: b.peer() });
        // A request that must wait for another to end waits until its deadline.
        let error = ask(&c, ECHO, Vec::new(), 100).err().unwrap();
        assert_eq!(error, Error::Full { peer: b.peer() });
        std::thread::scope(|s| {
            let waits = s.spawn(|| ask(&c, ECHO, Vec::new(), 20_000));
            until("all there", || {
                b.served.held.lock().unwrap().len() == WINDOW
            });
            std::thread::sleep(Duration::from_millis(50));
            b.served
                .held
                .lock()
                .unwrap()
                .pop()
                .unwrap()
                .reply(0, Vec::new());
            assert!(waits.join().unwrap().is_ok());
        });
        b.served.held.lock().unwrap().clear();
        assert_eq!(b.served.held_most.load(Ordering::SeqCst), WINDOW);
    });
}

#[test]
fn a_node_leaves_no_threads_or_descriptors() {
    within(60, || {
        let (a, b, c) = pair();
        ask(&c, ECHO, Vec::new(), 5000).unwrap();
        let weak = Arc::downgrade(&c);
        drop(c);
        drop(a.transport);
        until("the other side lets go", || b.transport.connections() == 0);
        b.served.connected.lock().unwrap().clear();
        until("nobody holds the connection", || weak.upgrade().is_none());
    });
}

#[test]
fn a_node_listens_only_on_its_addresses() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let a = node(1, &key);
        let address = a.peer().address;
        assert!(address.ip().is_loopback() && address.port() != 0);
        let served = Arc::new(Served::default());
        let error = TcpTransport::start(options(2, key.clone()), served.clone(), &[address]).err();
        assert!(matches!(error, Some(Error::Listen { .. })));
        let silent = TcpTransport::start(options(3, key), served, &[]).unwrap();
        assert!(silent.addresses().is_empty());
        let c = silent.connect(a.peer(), soon(5000)).unwrap();
        assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
    });
}
