//! Writing back the changes that mappings have made to a striped file: each node merges its pieces
//! ([`crate::merge`]).

use super::*;
use crate::merge::{Conflict, pack};

impl<'a> Stripes<'a> {
    /// As [`Mappings::merge`], for a striped file.
    pub(crate) fn merge_striped(
        &self,
        index: u32,
        offset: u64,
        (before, now): (&[u8], &[u8]),
        conflict: &mut Option<Conflict>,
    ) -> Result<()> {
        let f = self.striped(index).ok_or(Errno::IO)?;
        self.retry_cut(&f, || {
            let first = Stripes::is_first(&f, offset, now.len());
            let known = self.look(&f, !first)?;
            let len = now.len().min(known.size.saturating_sub(offset) as usize);
            if len > 0 {
                check_word(known.word, known.size, Change::From(Some(offset)))?;
            }
            if !first {
                self.cluster.declarations().prepare_parts(&f)?;
            }
            for p in self.spread(&f, known.cuts, (offset, len), true)? {
                let (from, to) = (p.done, p.done + p.len);
                let cuts = Some(known.cuts);
                pack(&before[from..to], &now[from..to], MAX_BODY, |body| {
                    let one = match p.place {
                        Place::Object => self
                            .cluster
                            .mappings()
                            .merge_here(f.index, cuts, None, p.offset, body)?,
                        Place::Part => {
                            let part = self.own_part(&f, true)?.ok_or(Errno::IO)?;
                            self.cluster
                                .mappings()
                                .merge_part(part, known.cuts, p.offset, body)?
                        }
                        Place::Home(node) | Place::On(node) => self
                            .cluster
                            .mappings()
                            .merge_remote(node, f.id, cuts, p.offset, body)?,
                    };
                    Conflict::add(conflict, one);
                    Ok(())
                })?;
            }
            Ok(())
        })
    }
}
