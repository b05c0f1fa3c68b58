//! The sending side of a lane.
//!
//! Messages are queued. One thread at a time has the lane's [`Writer`] and sends until the queue is
//! empty: the thread that queued a message, unless another thread is sending already. So messages
//! of several threads go out in one write. When the socket is full, the writer is *parked*: the I/O
//! thread continues when the socket has space. The limit on requests in progress bounds the queue.

use super::Way;
use super::engine::on_io_thread;
use super::outbox::{Message, Outbox, STEP, Writer};
use super::session::{BULK, CONTROL, Lane, OUT_STALLS, Session};
use crate::{CutReason, lock};
use std::time::Instant;

/// Number of bytes that a thread sends for other threads before it leaves the rest to the I/O
/// thread.
const BUDGET: usize = 8 << 20;

impl Session {
    /// Sends a message. If another thread is sending on this lane, leaves the message to it. With
    /// `lazily`, leaves the message to the next thread that sends. Never blocks.
    pub fn send(&self, message: Message, lazily: bool) {
        let index = if message.body.is_some() { BULK } else { 0 };
        let lane = &self.lanes[index];
        let mut out = lock(&lane.out);
        if out.closed {
            return;
        }
        out.queue.push_back(message);
        if out.parked || lazily {
            return;
        }
        let Some(writer) = out.writer.take() else {
            return;
        };
        if index == BULK && (on_io_thread() || self.core.paces.is_some()) {
            // An I/O thread must not stay here, and with a bandwidth limit the caller must not
            // sleep: so a bulk thread continues.
            self.park(lane, &mut out, writer, index);
            return;
        }
        drop(out);
        if let Err(why) = self.pump(index, writer) {
            self.cut(why);
        }
    }

    /// Sends the lazy messages of the control lane.
    pub fn flush(&self) {
        let writer = {
            let mut out = lock(&self.lanes[CONTROL].out);
            if out.parked || out.queue.is_empty() {
                None
            } else {
                out.writer.take()
            }
        };
        if let Some(writer) = writer
            && let Err(why) = self.pump(CONTROL, writer)
        {
            self.cut(why);
        }
    }

    /// Continues sending when the socket has space again.
    pub fn go_on_sending(&self, index: usize) -> Result<(), CutReason> {
        let lane = &self.lanes[index];
        let writer = {
            let mut out = lock(&lane.out);
            if !out.parked {
                return Ok(());
            }
            out.parked = false;
            assert!(out.writer.is_some(), "a lane that is parked has its writer");
            out.writer.take()
        };
        writer.map_or(Ok(()), |writer| self.pump(index, writer))
    }

    fn park(&self, lane: &Lane, out: &mut Outbox, writer: Box<Writer>, index: usize) {
        if out.watched.is_none() {
            out.watched = Some(writer.total);
            self.watch(OUT_STALLS[index]);
        }
        assert!(out.writer.is_none() && !out.parked, "a lane has one writer");
        out.writer = Some(writer);
        out.parked = true;
        if !out.armed {
            out.armed = true;
            self.want_out(lane, true);
        }
    }

    /// Starts a timer that checks for progress. `what`: one of `OUT_STALLS` or `IN_STALLS`.
    pub fn watch(&self, what: u64) {
        let at = Instant::now() + self.core.options.limits.stall;
        self.core.timers.add(at, (self.id, what));
    }

    /// Sends until the queue is empty or the socket is full.
    fn pump(&self, index: usize, mut writer: Box<Writer>) -> Result<(), CutReason> {
        let lane = &self.lanes[index];
        // With a bandwidth limit, a thread switches between its lanes more often.
        let mut budget = match self.core.paces {
            Some(_) => STEP,
            None => BUDGET,
        };
        loop {
            while writer.wants_more() {
                let mut out = lock(&lane.out);
                if out.closed {
                    return Ok(());
                }
                let Some(message) = out.queue.pop_front() else {
                    if !writer.is_idle() {
                        break;
                    }
                    writer.tidy();
                    assert!(out.writer.is_none() && !out.parked, "a lane has one writer");
                    out.writer = Some(writer);
                    if out.armed {
                        out.armed = false;
                        self.want_out(lane, false);
                    }
                    return Ok(());
                };
                drop(out);
                writer.add(&lane.seal, message)?;
            }
            let wrote = writer.write(&lane.socket, &lane.seal)?;
            self.core.went(Way::Out, wrote.unwrap_or(0), index == BULK);
            budget = budget.saturating_sub(wrote.unwrap_or(0));
            if wrote.is_none() || budget == 0 {
                let mut out = lock(&lane.out);
                if !out.closed {
                    // After a successful write, no event will report space.
                    out.armed &= wrote.is_none();
                    self.park(lane, &mut out, writer, index);
                }
                return Ok(());
            }
        }
    }

    /// Returns whether nothing was sent since the lane's stall timer was started. Called when that
    /// timer is due.
    pub fn sending_stalled(&self, index: usize) -> bool {
        let mut out = lock(&self.lanes[index].out);
        let then = out.watched.take();
        // If there is no writer here, a thread is sending.
        let Some(total) = out.writer.as_ref().map(|w| w.total) else {
            return false;
        };
        if !out.parked {
            return false;
        }
        out.watched = Some(total);
        self.watch(OUT_STALLS[index]);
        then == Some(total)
    }
}
