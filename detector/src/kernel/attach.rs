//! A program at its place in the kernel, in any form.

use aya::Ebpf;
use aya::programs::fentry::FEntryLinkId;
use aya::programs::kprobe::KProbeLinkId;
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{Program, ProgramError};

use super::hooks::Candidate;

enum Link {
    Typed(BtfTracePointLinkId),
    Raw(RawTracePointLinkId),
    Fentry(FEntryLinkId),
    Kprobe(KProbeLinkId),
}

/// A program that is attached until [`Attachment::detach`], or until the kernel object is dropped.
pub(super) struct Attachment {
    program: &'static str,
    link: Link,
}

impl Attachment {
    /// Attaches a program that is loaded.
    pub fn new(ebpf: &mut Ebpf, candidate: Candidate) -> Result<Self, ProgramError> {
        let Candidate { program, form: _, target } = candidate;
        let link = match ebpf.program_mut(program) {
            Some(Program::BtfTracePoint(program)) => Link::Typed(program.attach()?),
            Some(Program::RawTracePoint(program)) => Link::Raw(program.attach(target)?),
            Some(Program::FEntry(program)) => Link::Fentry(program.attach()?),
            Some(Program::KProbe(program)) => Link::Kprobe(program.attach(target, 0)?),
            Some(_) | None => return Err(ProgramError::UnexpectedProgramType),
        };
        Ok(Self { program, link })
    }

    /// Detaches it; it stays loaded.
    pub fn detach(self, ebpf: &mut Ebpf) -> Result<(), ProgramError> {
        match (ebpf.program_mut(self.program), self.link) {
            (Some(Program::BtfTracePoint(program)), Link::Typed(link)) => program.detach(link),
            (Some(Program::RawTracePoint(program)), Link::Raw(link)) => program.detach(link),
            (Some(Program::FEntry(program)), Link::Fentry(link)) => program.detach(link),
            (Some(Program::KProbe(program)), Link::Kprobe(link)) => program.detach(link),
            _ => Err(ProgramError::UnexpectedProgramType),
        }
    }
}
