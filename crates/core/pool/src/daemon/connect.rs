//! Connects a [`Link`] to its node, in a thread that exists while a connection is needed.

use super::link::{Link, Links, Live, PROBE, Reach, State};
use super::local_node::LocalNode;
use super::wire::{HELLO, Hello};
use crate::Error;
use forebay_net::{Connection, Peer, Request};
use forebay_runtime::threads::{STACK, lock, start};
use rustix::io::Errno;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Pause between attempts to connect.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(2);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time limit for making a connection and exchanging the first messages on it.
const CONNECT: Duration = Duration::from_secs(3);
/// Minimum time between two log lines about a node that stays out of reach.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

impl Link {
    /// Starts the connecting thread, unless it runs. The thread connects if necessary, and sends
    /// the queued requests as soon as possible.
    pub(super) fn need_connection(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.connecting {
            return;
        }
        state.connecting = true;
        let this = self.clone();
        let thread = std::thread::Builder::new().name("fb-link".into());
        if start(thread, STACK, 0, move || this.connect()).is_err() {
            state.connecting = false;
            let failed = state.give_back(|_| true);
            drop(state);
            failed.iter().for_each(|q| q.fail(Errno::HOSTDOWN));
        }
    }

    /// Body of the connecting thread: tries to connect until there is a connection, or no request
    /// needs one.
    fn connect(self: &Arc<Self>) {
        let mut pause = FIRST_RETRY_DELAY;
        let mut waited = false;
        loop {
            let links = self.links.upgrade();
            let Some(links) = links.filter(|links| !links.local.stopped()) else {
                let mut state = lock(&self.state);
                state.connecting = false;
                return;
            };
            let mut state = lock(&self.state);
            state.drop_ended();
            if state.connection.is_some() && !std::mem::take(&mut waited) {
                // The connection can't take more requests now.
                state = self.pause(state, &mut pause);
            }
            if state.connection.is_none() {
                drop(state);
                if let Err(why) = self.try_to_connect(&links) {
                    if !self.failed(&links.local, &why) {
                        return;
                    }
                    drop(links);
                    drop(self.pause(lock(&self.state), &mut pause));
                    waited = true;
                    continue;
                }
                pause = FIRST_RETRY_DELAY;
            } else {
                drop(state);
            }
            self.pump(&links.local);
            let mut state = lock(&self.state);
            if state.connection.is_some() && state.queue.is_empty() {
                state.connecting = false;
                return;
            }
        }
    }

    fn pause<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        pause: &mut Duration,
    ) -> MutexGuard<'a, State> {
        // The pause ends at the earliest deadline of a queued request, so that the requester gets
        // its error in time.
        let first = state.queue.iter().map(|q| q.deadline()).min();
        let left = first.map_or(*pause, |at| at.saturating_duration_since(Instant::now()));
        let (state, _) = self
            .wake
            .wait_timeout(state, left.clamp(FIRST_RETRY_DELAY, *pause))
            .unwrap_or_else(PoisonError::into_inner);
        *pause = (*pause * 2).min(MAX_RETRY_DELAY);
        state
    }

    fn try_to_connect(self: &Arc<Self>, links: &Links) -> Result<(), Error> {
        let local = &links.local;
        let state = lock(&self.state);
        let first = state.queue.iter().map(|q| q.deadline()).min();
        let most = if state.given_up(local) {
            PROBE
        } else {
            CONNECT
        };
        drop(state);
        let deadline = (Instant::now() + most).min(first.unwrap_or(Instant::now() + most));
        // Even if no requester waits that long, the attempt takes at least 50 ms, to find out why
        // the node can't be reached.
        let deadline = deadline.max(Instant::now() + Duration::from_millis(50));
        let addresses = local.addresses_of(self.node);
        let mut why = Error::NotInMap(local.name_of(self.node));
        for address in addresses {
            let peer = Peer {
                node: self.node,
                address,
            };
            match self.connect_to(local, peer, deadline) {
                Ok((connection, hello)) => {
                    let live = Live {
                        connection: connection.clone(),
                        hello,
                        ours: true,
                        since: Instant::now(),
                    };
                    self.offer(local, live);
                    links.compare_maps(&connection, &hello);
                    return Ok(());
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    fn connect_to(
        &self,
        local: &LocalNode,
        peer: Peer,
        deadline: Instant,
    ) -> Result<(Arc<dyn Connection>, Hello), Error> {
        let connection = local.connect(peer, deadline)?;
        let request = Request {
            kind: HELLO,
            head: local.hello().encode(),
            ..Request::default()
        };
        let reply = connection
            .call(request, deadline)
            .inspect_err(|_| connection.close());
        let hello = Hello::decode(&reply?.head).ok_or(Error::Language)?;
        local.met(self.node, hello.incarnation);
        Ok((connection, hello))
    }

    /// Notes that a connection is established, and logs it if the node was reported as out of
    /// reach.
    pub(super) fn connected(&self, local: &LocalNode, state: &mut State) {
        state.heard = Instant::now();
        forebay_trace::event!(LINK_UP, self.node.0);
        if let Some(down) = state.down.take()
            && state.reported.is_some()
        {
            let after = down.elapsed().as_secs_f64();
            local.log(&format!(
                "{} can be reached again after {after:.1} s",
                local.name_of(self.node)
            ));
        }
        if state.reach != Reach::Up {
            state.since = SystemTime::now();
        }
        state.reach = Reach::Up;
        (state.why, state.failed, state.reported) = (None, None, None);
        (state.watch, state.gone) = (false, false);
    }

    /// Notes a failed attempt to connect, and fails the requests that can't wait any longer.
    /// Returns whether to try again.
    fn failed(&self, local: &LocalNode, why: &Error) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.drop_ended();
        if state.connection.is_some() {
            // The other side has connected meanwhile: the link has that connection.
            return true;
        }
        if state.reach != Reach::Unreachable {
            forebay_trace::event!(LINK_DOWN, self.node.0);
            state.since = SystemTime::now();
        }
        state.reach = Reach::Unreachable;
        let down = *state.down.get_or_insert(now);
        state.failed = Some(now);
        let given_up = state.given_up(local);
        let failed = state.give_back(|q| given_up || q.deadline() <= now);
        let quiet = (state.reported).is_some_and(|at| now - at < REPORT_INTERVAL);
        if !failed.is_empty() && !quiet {
            state.reported = Some(now);
            local.log(&format!(
                "{} can't be reached since {:.1} s: {why}",
                local.name_of(self.node),
                down.elapsed().as_secs_f64()
            ));
        }
        state.why = Some(why.to_string());
        let gone = !state.gone && now - down >= local.options.gone_after;
        if gone {
            state.gone = true;
            state.watch = false;
        }
        let go_on = !state.queue.is_empty() || state.watch;
        state.connecting = go_on;
        drop(state);
        self.wake.notify_all();
        failed.iter().for_each(|q| q.fail(Errno::HOSTDOWN));
        if gone {
            local.gone(self.node);
        }
        go_on
    }
}
