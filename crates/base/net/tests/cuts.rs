//! Tests of cuts and stalls between two nodes: each request ends in time, and no resource is left
//! over.

mod support;

use forebay_fuzz::relay::{Faults, Relay};
use forebay_net::{Connection, Error, PoolKey, Reply, Request};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use support::*;

#[test]
fn a_body_that_comes_too_late_lands_nowhere() {
    within(60, || {
        let (a, _b, relay, peer) = relayed();
        let c = a.connect(peer).unwrap();
        relay.set(Faults {
            hold: true,
            ..Faults::default()
        });
        let request = Request {
            kind: GIVE,
            head: le(1 << 20),
            landing: Some(Box::new(vec![0u8; 1 << 20])),
            ..Request::default()
        };
        let error = c.call(request, soon(200)).err().unwrap();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        relay.set(Faults::default());
        assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
        let request = Request {
            kind: GIVE,
            head: le(2 << 20),
            landing: Some(Box::new(vec![0u8; 2 << 20])),
            ..Request::default()
        };
        assert_eq!(
            c.call(request, soon(10_000)).unwrap().body.unwrap().length,
            2 << 20
        );
    });
}

#[test]
fn a_peer_that_dies_ends_requests_in_progress() {
    within(60, || {
        let (a, b, c) = pair();
        let (done, answers) = mpsc::channel();
        for _ in 0..20 {
            let done = done.clone();
            let then = move |reply: Result<Reply, Error>| done.send(reply.err()).unwrap();
            let request = Request {
                kind: HOLD,
                ..Request::default()
            };
            c.start(request, soon(60_000), Box::new(then)).unwrap();
        }
        until("they are there", || {
            b.served.held.lock().unwrap().len() == 20
        });
        let peer = b.peer();
        let begin = Instant::now();
        drop(b.transport);
        for _ in 0..20 {
            let error = answers.recv().unwrap().unwrap();
            assert!(
                matches!(&error, Error::Cut { peer: p, .. } if *p == peer),
                "{error}"
            );
        }
        assert!(begin.elapsed() < Duration::from_secs(3));
        assert!(c.ended().is_some());
        assert!(matches!(
            ask(&c, ECHO, Vec::new(), 1000),
            Err(Error::Cut { .. })
        ));
        until("reported", || a.served.ended.lock().unwrap().len() == 1);
        assert_eq!(a.transport.connections(), 0);
        let error = a.connect(peer).err().unwrap();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        // The held replies have no receiver any longer.
        b.served.held.lock().unwrap().clear();
    });
}

#[test]
fn cuts_in_the_middle_of_messages_and_connecting_again() {
    within(120, || {
        let (a, b, relay, peer) = relayed();
        for cut_after in [150, 200, 1000, 5_000, 70_000, 1_000_000] {
            let c = a.connect(peer).unwrap();
            relay.set(Faults {
                cut_after: Some(cut_after),
                ..Faults::default()
            });
            let error = loop {
                let request = Request {
                    kind: TAKE,
                    head: pattern(50),
                    body: Some(Box::new(pattern(40_000))),
                    ..Request::default()
                };
                if let Err(error) = c.call(request, soon(5000)) {
                    break error;
                }
            };
            assert!(
                matches!(&error, Error::Cut { peer: p, .. } if *p == peer),
                "{error}"
            );
            relay.set(Faults::default());
        }
        let c = a.connect(peer).unwrap();
        assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
        relay.cut();
        until("noticed", || c.ended().is_some());
        let c = a.connect(peer).unwrap();
        assert!(ask(&c, ECHO, Vec::new(), 5000).is_ok());
        until("none is left over", || b.transport.connections() == 1);
    });
}

#[test]
fn a_changed_bit_is_noticed() {
    within(120, || {
        let (a, _b, relay, peer) = relayed();
        let send = |c: &Arc<dyn Connection>| {
            let request = Request {
                kind: TAKE,
                body: Some(Box::new(pattern(100_000))),
                ..Request::default()
            };
            c.call(request, soon(5000))
        };
        // A byte of an unencrypted body is changed: the request fails, and the connection isn't
        // cut.
        relay.set(Faults {
            flip: Some(50_000),
            ..Faults::default()
        });
        let c = a.connect(peer).unwrap();
        let error = send(&c).err().unwrap();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert!(send(&c).is_ok());
        relay.set(Faults {
            flip_back: Some(50_000),
            ..Faults::default()
        });
        let c = a.connect(peer).unwrap();
        let request = Request {
            kind: GIVE,
            head: le(100_000),
            landing: Some(Box::new(vec![0u8; 100_000])),
            ..Request::default()
        };
        let error = c.call(request, soon(5000)).err().unwrap();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        // A byte of a frame is changed: the connection isn't trusted any longer.
        relay.set(Faults {
            flip: Some(160),
            ..Faults::default()
        });
        let c = a.connect(peer).unwrap();
        let error = ask(&c, ECHO, pattern(100), 5000).err().unwrap();
        assert!(matches!(error, Error::Cut { .. }), "{error}");
    });
}

#[test]
fn a_peer_that_stops_in_the_middle_is_given_up() {
    within(60, || {
        let key = PoolKey::generate().unwrap();
        let mut slow = options(1, key.clone());
        slow.limits.stall = Duration::from_millis(300);
        let (a, b) = (node_with(slow), node(2, &key));
        let relay = Relay::start(b.peer().address).unwrap();
        let c = a.connect(behind(&relay, &b)).unwrap();
        relay.set(Faults {
            hold: true,
            ..Faults::default()
        });
        let request = Request {
            kind: TAKE,
            body: Some(Box::new(pattern(60 << 20))),
            ..Request::default()
        };
        let begin = Instant::now();
        let error = c.call(request, soon(20_000)).err().unwrap();
        assert!(error.to_string().contains("no progress"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(3));
        relay.set(Faults::default());
    });
}

#[test]
fn delayed_messages_arrive() {
    within(60, || {
        let (a, _b, relay, peer) = relayed();
        let c = a.connect(peer).unwrap();
        relay.set(Faults {
            delay: Duration::from_millis(50),
            ..Faults::default()
        });
        let begin = Instant::now();
        assert!(ask(&c, ECHO, pattern(100), 5000).is_ok());
        assert!(begin.elapsed() >= Duration::from_millis(100));
    });
}
