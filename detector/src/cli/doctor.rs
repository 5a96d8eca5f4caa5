//! `doctor`: what this kernel and these privileges allow, as a table or as the contract's JSON.

use std::borrow::Cow;

use super::style::{Painter, Style};
use super::table::{Cell, Table};
use crate::kernel::{BtfState, Capability, Doctor, Healing, HookState, HookStatus, Verdict};
use crate::model::BackendKind;
use crate::text;

/// The contract's object, on one line.
///
/// # Errors
/// None that can happen: every field is plain data.
pub fn json(doctor: &Doctor) -> serde_json::Result<String> {
    serde_json::to_string(doctor).map(|json| json + "\n")
}

/// The exit code of the verdict.
pub const fn exit_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Full => 0,
        Verdict::Degraded => 1,
        Verdict::Impossible => 2,
    }
}

const HEADINGS: [&str; 4] = ["HOOK", "BACKEND", "STATUS", "WHY, AND WHAT IS LOST"];
/// The last one is never cut, so none gives way: a hook's name is of no use in part.
const NO_COLUMN: usize = HEADINGS.len() - 1;

/// The table for people; the last line is the verdict.
pub fn table(doctor: &Doctor, painter: Painter, terminal: Option<usize>) -> String {
    let Doctor { kernel, lockdown, btf, backend: _, healing, hooks, capabilities } = doctor;
    let held: Vec<_> = capabilities.iter().filter(|capability| capability.held).map(|held| held.name).collect();
    let held = if held.is_empty() { "none of use".to_owned() } else { held.join(", ") };
    let mut output = String::new();
    let mut fact = |name, value: &str| {
        let value = text::printable(value.as_ref());
        output += &format!("{}  {value}\n", painter.column(Some(Style::Heading), name, "capabilities".len()));
    };
    fact("kernel", kernel);
    fact("lockdown", lockdown.as_str());
    fact("BTF", btf_words(*btf));
    fact("healing", &healing_words(healing));
    fact("capabilities", &held);
    for Capability { name, needed_for, .. } in capabilities.iter().filter(|capability| !capability.held) {
        fact("missing", &format!("{name}: {needed_for}"));
    }
    output.push('\n');
    output += &hook_table(hooks).render(painter, terminal);
    output.push('\n');
    output + &verdict(doctor, painter) + "\n"
}

const fn btf_words(btf: BtfState) -> &'static str {
    match btf {
        BtfState::Complete => "complete",
        BtfState::WithoutFuse => "of the kernel, not of FUSE (a module without BTF, or not loaded)",
        BtfState::Absent => "absent, or not readable",
    }
}

fn healing_words(healing: &Healing) -> Cow<'_, str> {
    match healing {
        Healing::Possible => "possible".into(),
        Healing::Limited(why) => format!("limited; {why}").into(),
        Healing::Impossible(why) => format!("not possible; {why}").into(),
    }
}

const fn status_words(status: HookState) -> (&'static str, Style) {
    match status {
        HookState::Attached => ("attached", Style::Good),
        HookState::Unsupported => ("unsupported", Style::Warning),
        HookState::Refused => ("refused", Style::Bad),
        HookState::NotNeeded => ("not needed", Style::Faint),
    }
}

fn hook_table(hooks: &[HookStatus]) -> Table<4> {
    let mut table = Table::new(HEADINGS, NO_COLUMN);
    for HookStatus { name, backend, status, why, lost } in hooks {
        let (word, style) = status_words(*status);
        let why = why.as_deref().map(|why| text::printable(why.as_ref()));
        let mut remarks = why.into_iter().chain(lost.map(|lost| format!("lost: {lost}")));
        let first = remarks.next().unwrap_or_default();
        table.row([Cell::plain(*name), Cell::plain(backend.as_str()), Cell::styled(style, word), Cell::plain(first)]);
        for remark in remarks {
            table.row([Cell::default(), Cell::default(), Cell::default(), Cell::plain(remark)]);
        }
    }
    table
}

fn verdict(doctor: &Doctor, painter: Painter) -> String {
    let by = doctor.backend.map(|backend| format!(", backend {}", backend.as_str())).unwrap_or_default();
    match doctor.verdict() {
        Verdict::Full => painter.paint(Style::Good, &format!("full detection{by}")),
        Verdict::Degraded => painter.paint(Style::Warning, &format!("degraded detection{by}: {}", missing(doctor))),
        Verdict::Impossible => painter.paint(Style::Bad, "no detection possible, for the reasons above"),
    }
}

/// Why it is not full, in a clause.
fn missing(doctor: &Doctor) -> String {
    if doctor.backend == Some(BackendKind::Portable) {
        return "no kernel program is in use".to_owned();
    }
    let missing = |hook: &&HookStatus| matches!(hook.status, HookState::Unsupported | HookState::Refused);
    let names: Vec<_> = doctor.hooks.iter().filter(missing).map(|hook| hook.name).collect();
    format!("without {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Lockdown;

    fn hook(name: &'static str, status: HookState, why: Option<&str>, lost: Option<&'static str>) -> HookStatus {
        HookStatus { name, backend: BackendKind::Tracepoint, status, why: why.map(str::to_owned), lost }
    }

    fn doctor() -> Doctor {
        Doctor {
            kernel: "6.18.44".into(),
            lockdown: Lockdown::Confidentiality,
            btf: BtfState::Complete,
            backend: Some(BackendKind::Tracepoint),
            healing: Healing::Impossible("CAP_SYS_ADMIN is missing".into()),
            hooks: vec![
                hook("fuse_request_end", HookState::Attached, Some("tp_btf"), None),
                hook("sys_exit", HookState::Refused, Some("EPERM: CAP_PERFMON\nis missing"), Some("errors seen")),
                hook("mark_victim", HookState::NotNeeded, None, None),
            ],
            capabilities: Vec::new(),
        }
    }

    #[test]
    fn the_table_for_people_ends_with_the_verdict() {
        assert_eq!(
            table(&doctor(), Painter::PLAIN, None),
            "\
kernel        6.18.44
lockdown      confidentiality
BTF           complete
healing       not possible; CAP_SYS_ADMIN is missing
capabilities  none of use

HOOK              BACKEND     STATUS      WHY, AND WHAT IS LOST
fuse_request_end  tracepoint  attached    tp_btf
sys_exit          tracepoint  refused     EPERM: CAP_PERFMON\\nis missing
                                          lost: errors seen
mark_victim       tracepoint  not needed

degraded detection, backend tracepoint: without sys_exit
"
        );
    }

    #[test]
    fn colour_is_in_the_status_and_the_verdict() {
        let text = table(&doctor(), Painter::COLORED, None);
        assert!(text.contains("\x1b[1;31mrefused\x1b[0m     EPERM"), "{text}");
        assert!(text.ends_with("\x1b[33mdegraded detection, backend tracepoint: without sys_exit\x1b[0m\n"), "{text}");
    }

    #[test]
    fn exit_codes_and_last_lines_are_the_contracts() {
        let portable = Doctor { backend: Some(BackendKind::Portable), ..doctor() };
        let nothing = Doctor { backend: None, ..doctor() };
        let full = Doctor { hooks: Vec::new(), ..doctor() };
        for (doctor, code, last) in [
            (full, 0, "full detection, backend tracepoint\n"),
            (portable, 1, "degraded detection, backend portable: no kernel program is in use\n"),
            (nothing, 2, "no detection possible, for the reasons above\n"),
        ] {
            assert_eq!(exit_code(doctor.verdict()), code);
            assert!(table(&doctor, Painter::PLAIN, None).ends_with(last));
        }
    }

    #[test]
    fn json_is_one_line() {
        let json = json(&doctor()).unwrap();
        assert_eq!(json.lines().count(), 1);
        assert!(json.starts_with(r#"{"kernel":"6.18.44","lockdown":"confidentiality","btf":"complete","backend":"#));
    }
}
