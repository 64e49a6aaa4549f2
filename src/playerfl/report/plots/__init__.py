"""Figures of a report. Each function returns figure and axes and shows nothing."""
