# Copyright (c) 2026 kpro
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ring 3: the way from options to ``exit_json``, with errors reported once."""

from __future__ import annotations

import typing as t

from ansible.module_utils.basic import AnsibleModule

from .errors import KproError
from .shown_text import printable, printable_values


def run_module(
    main: t.Callable[[dict[str, t.Any], bool], dict[str, t.Any]],
    argument_spec: dict[str, t.Any],
    **module_options: t.Any,
) -> None:
    """Build the module, call ``main(params, check_mode)`` and end with its result; its ``warnings`` are shown at the terminal.

    A :class:`KproError` becomes a failed task with ``msg`` (one sentence), ``what``, ``reason``, ``remedy`` and ``details``.
    Whatever text of logs, names and answers is in a result: a terminal can print it as it is.
    """
    module = AnsibleModule(argument_spec=argument_spec, supports_check_mode=True, **module_options)
    try:
        result = main(module.params, module.check_mode)
    except KproError as error:
        values = {"what": error.what, "reason": error.reason, "remedy": error.remedy, "details": error.details}
        module.fail_json(msg=printable(error.sentence), **printable_values(values))
    for text in result.pop("warnings", ()):
        module.warn(printable(text))
    module.exit_json(**printable_values(result))
