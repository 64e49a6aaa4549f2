"""A local page that shows runs, studies and jobs in progress. It reads their files and writes none."""
