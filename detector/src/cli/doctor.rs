//! `doctor`: what this kernel and these privileges allow, as a table or as the contract's JSON.

use serde::Serialize;

use super::style::{Painter, Style};
use super::table::{Cell, Table};
use crate::model::BackendKind;
use crate::text;

/// How one hook fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HookState {
    /// It was attached.
    Attached,
    /// This kernel does not have it.
    Unsupported,
    /// The kernel has it and did not let us.
    Refused,
    /// Another one does its work.
    NotNeeded,
}

impl HookState {
    /// In the table.
    const fn words(self) -> (&'static str, Style) {
        match self {
            Self::Attached => ("attached", Style::Good),
            Self::Unsupported => ("unsupported", Style::Warning),
            Self::Refused => ("refused", Style::Bad),
            Self::NotNeeded => ("not needed", Style::Faint),
        }
    }
}

/// One hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookReport {
    /// Its name.
    pub name: &'static str,
    /// The backend it belongs to.
    pub backend: BackendKind,
    /// How it fared.
    pub status: HookState,
    /// Why it isn't attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What is lost without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<&'static str>,
}

/// The answer to "what can be detected here".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Everything.
    Full,
    /// Something is missing: what to know, in a clause.
    Degraded(String),
    /// Nothing: why.
    Impossible(String),
}

impl Verdict {
    /// The exit code of `doctor`.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Full => 0,
            Self::Degraded(_) => 1,
            Self::Impossible(_) => 2,
        }
    }
}

/// What `doctor` found out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// Its lockdown mode; left out where it can't be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lockdown: Option<String>,
    /// Whether it carries its own type information.
    pub btf: bool,
    /// The backend that would be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
    /// Every hook that was tried.
    pub hooks: Vec<HookReport>,
    /// The capabilities that this process has of those that are of use.
    pub capabilities: Vec<String>,
    /// The sum of it.
    #[serde(skip)]
    pub verdict: Verdict,
}

/// The contract's object, on one line.
///
/// # Errors
/// None that can happen: every field is plain data.
pub fn json(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string(report).map(|json| json + "\n")
}

const HEADINGS: [&str; 4] = ["HOOK", "BACKEND", "STATUS", "WHY, AND WHAT IS LOST"];
const NAME_COLUMN: usize = 0;

/// The table for people; the last line is the verdict.
pub fn table(report: &Report, painter: Painter, terminal: Option<usize>) -> String {
    let capabilities = match report.capabilities.as_slice() {
        [] => "none of use".to_owned(),
        some => some.join(", "),
    };
    let mut output = String::new();
    for (name, value) in [
        ("kernel", report.kernel.as_str()),
        ("lockdown", report.lockdown.as_deref().unwrap_or("not readable")),
        ("BTF", if report.btf { "yes" } else { "no" }),
        ("capabilities", &capabilities),
    ] {
        output += &format!("{}  {}\n", painter.column(Some(Style::Heading), name, 12), text::printable(value.as_ref()));
    }
    output.push('\n');
    output += &hooks(&report.hooks).render(painter, terminal);
    output.push('\n');
    output + &verdict(report, painter) + "\n"
}

fn hooks(hooks: &[HookReport]) -> Table<4> {
    let mut table = Table::new(HEADINGS, NAME_COLUMN);
    for HookReport { name, backend, status, why, lost } in hooks {
        let (word, style) = status.words();
        let mut remarks = why.as_deref().map(|why| text::printable(why.as_ref())).into_iter().chain(
            // What a hook is good for is lost only when it is not there and nothing else does its work.
            lost.filter(|_| matches!(status, HookState::Unsupported | HookState::Refused))
                .map(|lost| format!("lost: {lost}")),
        );
        let first = remarks.next().unwrap_or_default();
        table.row([Cell::plain(*name), Cell::plain(backend.as_str()), Cell::styled(style, word), Cell::plain(first)]);
        for remark in remarks {
            table.row([Cell::default(), Cell::default(), Cell::default(), Cell::plain(remark)]);
        }
    }
    table
}

fn verdict(report: &Report, painter: Painter) -> String {
    let by = report.backend.map(|backend| format!(", backend {}", backend.as_str())).unwrap_or_default();
    match &report.verdict {
        Verdict::Full => painter.paint(Style::Good, &format!("full detection{by}")),
        Verdict::Degraded(why) => painter.paint(Style::Warning, &format!("degraded detection{by}: {why}")),
        Verdict::Impossible(why) => painter.paint(Style::Bad, &format!("no detection possible: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let hook = |name, status, why: Option<&str>, lost| HookReport {
            name,
            backend: BackendKind::Tracepoint,
            status,
            why: why.map(str::to_owned),
            lost,
        };
        Report {
            kernel: "6.18.44".into(),
            lockdown: Some("confidentiality".into()),
            btf: true,
            backend: Some(BackendKind::Tracepoint),
            hooks: vec![
                hook("fuse_request_end", HookState::Attached, None, Some("the end of requests")),
                hook("sys_exit", HookState::Refused, Some("EPERM: CAP_PERFMON is missing"), Some("errors seen")),
                hook("oom_mark_victim", HookState::NotNeeded, Some("covered"), Some("who ran out of memory")),
            ],
            capabilities: vec!["CAP_BPF".into(), "CAP_SYS_PTRACE".into()],
            verdict: Verdict::Degraded("sys_exit was refused".into()),
        }
    }

    #[test]
    fn the_table_for_people_ends_with_the_verdict() {
        assert_eq!(
            table(&report(), Painter::PLAIN, None),
            "\
kernel        6.18.44
lockdown      confidentiality
BTF           yes
capabilities  CAP_BPF, CAP_SYS_PTRACE

HOOK              BACKEND     STATUS      WHY, AND WHAT IS LOST
fuse_request_end  tracepoint  attached
sys_exit          tracepoint  refused     EPERM: CAP_PERFMON is missing
                                          lost: errors seen
oom_mark_victim   tracepoint  not needed  covered

degraded detection, backend tracepoint: sys_exit was refused
"
        );
    }

    #[test]
    fn exit_codes_are_the_contracts() {
        assert_eq!(Verdict::Full.exit_code(), 0);
        assert_eq!(report().verdict.exit_code(), 1);
        assert_eq!(Verdict::Impossible("no /proc".into()).exit_code(), 2);
    }

    #[test]
    fn json_has_the_contracts_shape() {
        let mut report = report();
        report.hooks.truncate(2);
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::json!({
                "kernel": "6.18.44", "lockdown": "confidentiality", "btf": true, "backend": "tracepoint",
                "hooks": [
                    {"name": "fuse_request_end", "backend": "tracepoint", "status": "attached",
                     "lost": "the end of requests"},
                    {"name": "sys_exit", "backend": "tracepoint", "status": "refused",
                     "why": "EPERM: CAP_PERFMON is missing", "lost": "errors seen"},
                ],
                "capabilities": ["CAP_BPF", "CAP_SYS_PTRACE"],
            })
        );
        assert_eq!(serde_json::to_value(HookState::NotNeeded).unwrap(), "notNeeded");
    }
}
