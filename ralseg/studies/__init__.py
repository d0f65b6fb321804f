"""Studies: methods compared over paired seeds, with statistics, figures, a report and MLflow.

Here live the plan of a study, executors that run its cells, paired statistics, tables, figures and the report. A cell
is a call of `ralseg acquire`; nothing here trains by itself.
"""

from ralseg.studies.plan import Study

__all__ = ["Study"]
